"""Threads that share objects of every room. On a Python without its lock they meet inside of our C as well."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import ollama_engine
import tests
from tests.robustness.threads_child import SCENES


@pytest.mark.parametrize("name", SCENES)
def test_threads_may_share(name: str) -> None:
    command = [sys.executable, "-m", "tests.robustness.threads_child", name]
    root = Path(tests.__file__).parents[1]
    child = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=150, check=False)
    assert child.returncode == 0, f"{name} ended with {child.returncode}\n{child.stderr[-3000:]}"


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python has its lock")
def test_no_module_of_ours_takes_the_lock_back() -> None:
    """Python takes it back, with a warning, for a module that does not say that it does without."""
    folder = Path(ollama_engine.__path__[0])
    modules = [path.relative_to(folder.parent) for path in folder.rglob("*.so") if ".cpython-" in path.name]
    names = [".".join([*path.parent.parts, path.name.partition(".")[0]]) for path in modules]
    assert len(names) >= 40
    told = f"import importlib, sys; [importlib.import_module(n) for n in {names}]; sys.exit(sys._is_gil_enabled())"
    subprocess.run([sys.executable, "-W", "error", "-c", told], check=True, timeout=150)
