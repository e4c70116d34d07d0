"""Amounts of memory on the command line: readers for argparse."""

from __future__ import annotations

import argparse

from ollama_engine.server.sizes import bytes_of

__all__ = ["read_size", "read_sizes"]


def read_sizes(text: str) -> tuple[int, ...]:
    """Bytes of "8GiB,24GB": powers of 1024, whichever way the unit is spelled. Raises ArgumentTypeError.

    Bare numbers are refused: who types 8 means GiB, and would get a plan for 8 bytes.
    """
    sizes = [_above_0(part, bare=False) for part in text.split(",")]
    if not all(sizes):
        raise argparse.ArgumentTypeError(f"expected sizes above 0 with their unit, such as 8GiB,24GiB, got {text!r}")
    return tuple(sizes)


def read_size(text: str) -> int:
    """Bytes of one size; a bare number is one of bytes. Raises ArgumentTypeError."""
    size = _above_0(text, bare=True)
    if not size:
        raise argparse.ArgumentTypeError(f"expected a size above 0 such as 8GiB, got {text!r}")
    return size


def _above_0(text: str, *, bare: bool) -> int:
    """The bytes; 0 for what is no size."""
    try:
        return bytes_of(text, bare=bare)
    except ValueError:
        return 0
