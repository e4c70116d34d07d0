"""A portable build on CPUs without AVX2 and with it, and a native build on a CPU that lacks its instructions.

`make portable-check` builds what these tests run, in .venv-portable, and runs them; elsewhere they are skipped. The
CPUs are those of QEMU's user emulation, which has no AVX-512: a variant of ggml that it must not choose dies there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ollama_engine.ml.device.cpu_check import missing_instructions
from tests.plugins.not_run_here import NOT_HERE

ROOT = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).with_name("cpu_child.py")
PYTHON = Path(os.environ.get("OLLAMA_ENGINE_PORTABLE_PYTHON", ROOT / ".venv-portable/bin/python"))
QEMU = shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
PATIENCE = 1200
"""Seconds: an emulated CPU is twenty times as slow, and the machine may be busy."""

needs_qemu = pytest.mark.skipif(QEMU is None, reason=f"{NOT_HERE}emulated lesser CPUs (make portable-check)")
needs_portable = pytest.mark.skipif(not PYTHON.exists(), reason=f"{NOT_HERE}emulated lesser CPUs (make portable-check)")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * PATIENCE), needs_qemu]  # QEMU is slow

# CPU -> the kind that kernel_choice sees, and what ggml's variant must have and must not have. numpy's wheels want
# x86-64-v2, so Nehalem is the least.
CPUS = {
    "Nehalem": ("", {"SSE3", "SSSE3"}, {"AVX", "AVX2", "AVX512"}),
    "Haswell": ("avx2", {"AVX2", "FMA", "F16C", "BMI2"}, {"AVX512", "AVX_VNNI"}),
    "Skylake-Client": ("avx2", {"AVX2", "FMA", "F16C", "BMI2"}, {"AVX512", "AVX_VNNI"}),
    "max": ("avx2", {"AVX2", "FMA", "F16C", "BMI2"}, {"AVX512", "AVX_VNNI"}),
}


def run(python: Path | str, cpu: str | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A Python program on an emulated CPU, or on this one."""
    emulated = [str(QEMU), "-cpu", cpu] if cpu else []
    return subprocess.run(
        [*emulated, str(python), *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=ROOT
    )


def computed(cpu: str | None) -> dict[str, Any]:
    done = run(PYTHON, cpu, str(CHILD))
    assert done.returncode == 0, f"{cpu}: ended with {done.returncode} (-4: illegal instruction)\n{done.stderr[-3000:]}"
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def here() -> dict[str, Any]:
    return computed(None)


@needs_portable
@pytest.mark.parametrize("cpu", CPUS)
def test_everything_runs_and_answers_the_same(cpu: str, here: dict[str, Any]) -> None:
    kind, has, lacks = CPUS[cpu]
    found = computed(cpu)
    assert found["chosen"]["kind"] == kind
    assert has <= set(found["chosen"]["ggml"])
    assert not lacks & set(found["chosen"]["ggml"])
    assert not found["chosen"]["amx"]
    assert found["chosen"]["small_batch"] == found["chosen"]["attention"] == (kind or "scalar")
    assert found["exact"] == here["exact"], "our kernels give the same bits on every CPU"
    assert found["texts"] == here["texts"]
    assert found["picture"] == here["picture"]


def test_a_native_build_says_what_the_cpu_lacks() -> None:
    assert missing_instructions() == ()
    done = run(sys.executable, "Nehalem", "-c", "import ollama_engine.ml")
    if done.returncode == 0:
        pytest.skip("this build asks for no more than Nehalem has")
    assert done.returncode == 1, f"ended with {done.returncode}\n{done.stderr[-3000:]}"
    assert "DeviceError: this build of ollama_engine is for CPUs with " in done.stderr
    assert "avx" in done.stderr
    assert "OLLAMA_ENGINE_PORTABLE=ON" in done.stderr
