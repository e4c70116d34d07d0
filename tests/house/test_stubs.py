"""Every extension module has a stub, and the stubs say what the modules do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXTENSIONS = sorted((ROOT / "ollama_engine").rglob("*.pyx"))


@pytest.mark.parametrize("source", EXTENSIONS, ids=[str(p.relative_to(ROOT)) for p in EXTENSIONS])
def test_extension_has_a_stub(source: Path) -> None:
    assert source.with_suffix(".pyi").exists()


@pytest.mark.slow
def test_stubs_agree_with_the_modules() -> None:
    pytest.importorskip("mypy", reason="mypy is not installed (extra: lint); CI has it")
    modules = [".".join(p.relative_to(ROOT).with_suffix("").parts) for p in EXTENSIONS]
    command = [sys.executable, "-m", "mypy.stubtest", "--concise", "--allowlist", "tests/stubtest.allowlist"]
    result = subprocess.run(
        [*command, "--ignore-unused-allowlist", *modules], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
