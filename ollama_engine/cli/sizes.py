"""Amounts of memory as people write them: 8GiB, 512MB, 1.5G."""

from __future__ import annotations

import argparse
import re

__all__ = ["read_size", "read_sizes"]

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def read_sizes(text: str) -> tuple[int, ...]:
    """Bytes of "8GiB,24GB": powers of 1024, whichever way the unit is spelled. Raises ArgumentTypeError."""
    pattern = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)
    found = [pattern.fullmatch(part) for part in text.split(",")]
    sizes = [round(float(match[1]) * UNITS[match[2].upper()]) for match in found if match]
    if len(sizes) != len(found) or not all(sizes):
        raise argparse.ArgumentTypeError(f"expected sizes above 0 such as 8GiB,24GiB, got {text!r}")
    return tuple(sizes)


def read_size(text: str) -> int:
    """Bytes of one size. Raises ArgumentTypeError."""
    try:
        (size,) = read_sizes(text)
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(f"expected a size above 0 such as 8GiB, got {text!r}") from None
    return size
