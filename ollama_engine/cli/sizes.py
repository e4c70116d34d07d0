"""Amounts of memory as people write them: 8GiB, 512MB, 1.5G."""

from __future__ import annotations

import argparse
import re

__all__ = ["read_size", "read_sizes"]

UNITS = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(?:i?B)?|(B?))\s*", re.IGNORECASE)


def read_sizes(text: str) -> tuple[int, ...]:
    """Bytes of "8GiB,24GB": powers of 1024, whichever way the unit is spelled. Raises ArgumentTypeError.

    Bare numbers are refused: who types 8 means GiB, and would get a plan for 8 bytes.
    """
    sizes = [_bytes_of(part, bare=False) for part in text.split(",")]
    if not all(sizes):
        raise argparse.ArgumentTypeError(f"expected sizes above 0 with their unit, such as 8GiB,24GiB, got {text!r}")
    return tuple(sizes)


def read_size(text: str) -> int:
    """Bytes of one size; a bare number is one of bytes. Raises ArgumentTypeError."""
    size = _bytes_of(text, bare=True)
    if not size:
        raise argparse.ArgumentTypeError(f"expected a size above 0 such as 8GiB, got {text!r}")
    return size


def _bytes_of(text: str, *, bare: bool) -> int:
    """The bytes; 0 for what is no size."""
    match = _SIZE.fullmatch(text)
    if match is None or not (bare or match[2] or match[3]):
        return 0
    return round(float(match[1]) * UNITS[(match[2] or "").upper()])
