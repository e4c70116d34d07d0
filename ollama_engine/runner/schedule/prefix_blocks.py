"""How large blocks of the prefix store are, and how many bytes of them are in memory on their way to disk and back."""

from __future__ import annotations

__all__ = ["BLOCK", "LEAST", "MOST_PENDING", "blocks_ahead", "most_in_memory"]

BLOCK = 64
"""Inputs of a block. It divides the distance between checkpoints of recurrent models, so their places end blocks."""
LEAST = 256
"""Inputs of the shortest prefix that is stored, or looked for: a shorter one is soon computed."""
MOST_PENDING = 128 << 20
"""Bytes that wait to be written."""
AHEAD, MOST_AHEAD = 32, 64 << 20
"""Blocks, and bytes, that are read before the engine has taken them; one block at least."""


def blocks_ahead(block: int) -> int:
    """Blocks, of so many bytes each, that are read before the engine has taken them."""
    return min(max(1, MOST_AHEAD // max(1, block)), AHEAD)


def most_in_memory(block: int) -> int:
    """Most bytes in memory where a block has `block` bytes: those that wait, and one that each side is copying."""
    return MOST_PENDING + block + (blocks_ahead(block) + 1) * block
