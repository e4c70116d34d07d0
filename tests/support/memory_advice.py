"""Whether this system takes advice on memory: a mark for tests of what such advice does."""

from __future__ import annotations

import mmap

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
