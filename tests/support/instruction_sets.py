"""All instruction sets that our kernels are written for, whatever this build has and this CPU runs.

Kernels say which of them run here (`small_batch_instructions` and its like). What does not run is left out neither by a
list of parameters nor by a loop: `runnable` and `every` have it counted at the end.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from tests.plugins.not_run_here import NOT_HERE, not_here

X86 = platform.machine() in ("x86_64", "AMD64")
ARM = platform.machine() in ("aarch64", "arm64")
VECTORS = ("avx2", "avx512") if X86 else ("neon",) if ARM else ()

ATTENTION = ("scalar", *VECTORS)
FLOAT_PRODUCTS = ("scalar", *VECTORS)
PRODUCTS = ("scalar", "avx2", "avxvnni", "avx512", "amx") if X86 else ("scalar", *VECTORS, *(("i8mm",) if ARM else ()))
"""Of quantized weights with few rows, and, with amx, many."""
RECURRENT = ("scalar", *VECTORS)
SAMPLER = ("scalar", "sse2", *VECTORS) if X86 else ("scalar", "neon" if ARM else "baseline")

Case = tuple[Any, ...]
RecordProperty = Callable[[str, object], None]
"""pytest's fixture `record_property`."""


def runnable(cases: Iterable[Case], here: Callable[[Case], Sequence[str]], place: int = 1) -> list[Any]:
    """Cases as parameters, of which those are skipped whose instruction set, at `place`, is not among here(case)."""
    return [pytest.param(*case, marks=() if case[place] in here(case) else not_here(case[place])) for case in cases]


def every(sets: Iterable[str], here: Sequence[str], record_property: RecordProperty) -> Sequence[str]:
    """`here`, for a test that goes through all sets; the others are recorded in its report."""
    for name in sets:
        if name not in here:
            record_property(NOT_HERE, name)
    return here
