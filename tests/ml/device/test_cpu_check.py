"""What a build asks of the CPU, beside what ggml's library says it is compiled with."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ollama_engine
from ollama_engine.ml.device.cpu_check import missing_instructions, required_instructions
from ollama_engine.ml.device.device import devices

NAMES = {
    "SSE3": "sse3", "SSSE3": "ssse3", "AVX": "avx", "AVX2": "avx2", "FMA": "fma", "F16C": "f16c", "BMI2": "bmi2",
    "AVX512": "avx512f", "AVX512_VBMI": "avx512vbmi", "AVX512_VNNI": "avx512vnni", "AVX512_BF16": "avx512bf16",
    "AVX_VNNI": "avxvnni",
}  # fmt: skip


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="other CPUs are not asked")
def test_a_native_build_asks_for_all_that_its_ggml_is_compiled_with() -> None:
    required = required_instructions()
    if not required:
        pytest.skip("a portable build asks for nothing")
    compiled = {NAMES[name] for name, value in devices()[-1].features.items() if value == "1" and name in NAMES}
    assert "sse3" in compiled
    assert compiled <= set(required)


def test_this_cpu_has_what_this_build_asks_for() -> None:
    assert missing_instructions() == ()


def test_a_folder_of_sources_says_where_to_start_python(tmp_path: Path) -> None:
    package, here = tmp_path / "ollama_engine", Path(ollama_engine.__file__).parent
    (package / "ml/device").mkdir(parents=True)
    for name in ("__init__.py", "errors.py", "lazy.py", "ml/__init__.py", "ml/device/__init__.py"):
        shutil.copy(here / name, package / name)
    without_packages = [sys.executable, "-S", "-c", "import ollama_engine.ml"]
    done = subprocess.run(without_packages, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"ImportError: {package}/ml has no compiled modules" in done.stderr
    assert "Start Python in another folder" in done.stderr
    without_packages[-1] = "import sys; sys.frozen = True; import ollama_engine.ml"
    frozen = subprocess.run(without_packages, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "with PyInstaller, add --collect-all ollama_engine" in frozen.stderr
