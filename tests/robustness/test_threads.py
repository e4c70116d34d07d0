"""Threads that share objects of every room. On a Python without its lock they meet inside of our C as well."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tests
from tests.robustness.threads_child import SCENES


@pytest.mark.parametrize("name", SCENES)
def test_threads_may_share(name: str) -> None:
    command = [sys.executable, "-m", "tests.robustness.threads_child", name]
    root = Path(tests.__file__).parents[1]
    child = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=150, check=False)
    assert child.returncode == 0, f"{name} ended with {child.returncode}\n{child.stderr[-3000:]}"
