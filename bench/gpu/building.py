"""Building a backend into a virtual environment of its own, by the Makefile's rule, with progress on one line."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHOWN = 30
"""Lines of a failed build that are shown."""
HINTS: Mapping[str, str] = {
    "CUDA::cublas": "the CUDA toolkit has no cuBLAS: install libcublas's development files",
    "CUDA::cuda_driver": "libcuda was not found: install NVIDIA's driver, or the toolkit's stubs",
    "Unsupported gpu architecture": "this nvcc does not know the GPU's architecture: install a newer toolkit",
    "unsupported GNU version": "this nvcc takes older compilers only: CUDAHOSTCXX=/usr/bin/g++-12 names one",
    "SPIRV-HeadersConfig.cmake": "SPIRV-Headers has no CMake file where CMake looks: VULKAN_SDK may name its folder",
}
"""Words of a failed build -> what to do."""


def python_of(backend: str) -> Path:
    """The Python that has the package with this backend; `rpc` is part of every build."""
    return ROOT / (".venv" if backend == "rpc" else f".venv-gpu-{backend}") / "bin" / "python"


def target_of(backend: str) -> str:
    return str(python_of(backend).parents[1].relative_to(ROOT) / ".built")


def progress(line: str) -> str | None:
    """The progress in a line of ninja's, such as "177 of 569"; None for any other line."""
    found = re.match(r"\s*\[(\d+)/(\d+)\]", line)
    return f"{found[1]} of {found[2]}" if found else None


def hints(log: str) -> list[str]:
    """Advice about a failed build with this log."""
    return [advice for said, advice in HINTS.items() if said in log]


def build(backend: str, *, make: str = "make") -> Path:
    """Build what is not there yet, and return its Python. Ends the program where that fails, with the last lines."""
    log = ROOT / "build" / f"gpu-{backend}.log"
    log.parent.mkdir(exist_ok=True)
    print(f"gpu-check: building with {backend} into {target_of(backend)}; all lines go to {log}", file=sys.stderr)
    last: deque[str] = deque(maxlen=SHOWN)
    with (
        log.open("w") as written,
        subprocess.Popen(
            [make, target_of(backend)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        for line in process.stdout or ():
            written.write(line)
            last.append(line)
            shown = progress(line)
            if shown and sys.stderr.isatty():
                print(f"\r  {shown}", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    if process.returncode != 0:
        advice = "".join(f"\n  - {hint}" for hint in hints(log.read_text(encoding="utf-8", errors="replace")))
        raise SystemExit(f"{''.join(last)}gpu-check: the build with {backend} failed; all lines are in {log}{advice}")
    return python_of(backend)
