"""Checkpoints: how a caller ends the encoding of a long text, and how much is encoded between two of them."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["AT_ONCE", "Checkpoint"]

Checkpoint = Callable[[], object] | None
"""Called every few milliseconds while a long text is encoded, which its exception ends. None only looks for signals."""

AT_ONCE = 1 << 14
"""Characters that Python code works on between two checkpoints, with Python's lock held for a few milliseconds."""
