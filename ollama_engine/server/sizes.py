"""Amounts of memory as people write them: 8GiB, 512MB, 1.5G, or a number of bytes."""

from __future__ import annotations

import re

__all__ = ["SIZE", "bytes_of"]

SIZE = "a number of bytes, or a size such as 512MiB"
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"\s*(\d{1,19}(?:\.\d+)?)\s*(?:([KMGT])(?:i?B)?|(B?))\s*", re.IGNORECASE | re.ASCII)


def bytes_of(text: str, *, bare: bool = True) -> int:
    """The bytes, below 2**63: powers of 1024, whichever way the unit is spelled.

    Raises ValueError, which says what was expected, also for a part of a byte.
    `bare`: a number without a unit is one of bytes, otherwise it is refused.
    """
    match = _SIZE.fullmatch(text)
    if match is None or not (bare or match[2] or match[3]):
        raise ValueError(SIZE)
    unit, is_whole = _UNITS[(match[2] or "").upper()], "." not in match[1]
    size = int(match[1]) * unit if is_whole else round(float(match[1]) * unit)
    if size >= 1 << 63 or (unit == 1 and not is_whole):
        raise ValueError(SIZE)
    return size
