"""For tests where QEMU emulates a process: marks for what that leaves out, and how much longer it may take."""

from __future__ import annotations

import mmap
import sys

import pytest


def advice_is_heard() -> bool:
    """Not under QEMU's emulation of a process, which answers any advice with success and does nothing."""
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:
        try:
            memory.madvise(1000)  # there is no such advice
        except OSError:
            return True
    return False


TIMES_AS_LONG = 1 if advice_is_heard() else 10
"""For limits of processes that compute for seconds."""

NEEDS_ADVICE = pytest.mark.skipif(not advice_is_heard(), reason="an emulated system, which takes no advice on memory")
NEEDS_LIMITS = pytest.mark.skipif(
    sys.platform != "linux" or not advice_is_heard(), reason="needs RLIMIT_AS to count: Linux, not emulated"
)
