"""Which blocks of a prompt are read, and which rows of a history are written. Pure.

Layers of one kind see all earlier tokens, those of another kind a window, and recurrent ones the latest state. So a
block of a kind holds the rows that tokens behind its end see, and a prompt that goes on behind `n` blocks needs of each
kind the blocks that a token there sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ollama_engine.runner.schedule.prefix_blocks import BLOCK

__all__ = ["BlockPart", "FirstSeen", "blocks_needed", "longest_stored", "rows_of_block"]

FirstSeen = Callable[[int], Sequence[int]]
"""The lowest position that a token at a position sees, for each kind of layers. See `Saveable.first_seen`."""


class BlockPart(NamedTuple):
    """A block of one kind of layers."""

    block: int
    kind: int


def rows_of_block(block: int, first_seen: FirstSeen) -> list[tuple[int, int]]:
    """The positions [begin, end) that a block holds of each kind: those that a token behind the block sees."""
    begin, end = block * BLOCK, (block + 1) * BLOCK
    return [(max(begin, first), end) for first in first_seen(end)]


def blocks_needed(n: int, first_seen: FirstSeen) -> list[BlockPart]:
    """What is read to go on behind the first `n` blocks, block by block."""
    firsts = [first // BLOCK for first in first_seen(n * BLOCK)]
    return [BlockPart(block, kind) for block in range(n) for kind, first in enumerate(firsts) if block >= first]


def longest_stored(most: int, first_seen: FirstSeen, stored: Callable[[BlockPart], bool]) -> int:
    """The largest number of blocks, up to `most`, behind which a prompt can go on with what is stored; 0: none.

    Asks for each piece once at most.
    """
    known: dict[BlockPart, bool] = {}

    def has(piece: BlockPart) -> bool:
        if piece not in known:
            known[piece] = stored(piece)
        return known[piece]

    for n in _candidates(most, first_seen, has):
        if all(has(piece) for piece in blocks_needed(n, first_seen)):
            return n
    return 0


def _candidates(most: int, first_seen: FirstSeen, has: Callable[[BlockPart], bool]) -> Iterator[int]:
    """Numbers of blocks from the largest on; none beyond the first gap in a kind that sees everything."""
    everything = [kind for kind, first in enumerate(first_seen(most * BLOCK)) if first == 0]
    n = 0
    if everything:
        while n < most and all(has(BlockPart(n, kind)) for kind in everything):
            n += 1
    else:
        n = most
    yield from range(n, 0, -1)
