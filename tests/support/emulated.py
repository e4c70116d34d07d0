"""Marks for tests of what QEMU's emulation of a process leaves out: advice on memory, and limits of it."""

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


NEEDS_ADVICE = pytest.mark.skipif(not advice_is_heard(), reason="an emulated system, which takes no advice on memory")
NEEDS_LIMITS = pytest.mark.skipif(
    sys.platform != "linux" or not advice_is_heard(), reason="needs RLIMIT_AS to count: Linux, not emulated"
)
