"""The order in which Qwen2.5-VL's tower computes the patches of an image, window by window. No tensors.

A block is a square of patches that becomes one row of embeddings; a window is a square of blocks, in which patches
attend to each other. Windows at the right and bottom edge may be smaller. Here windows of one size are neighbours, so
that each of at most four sizes is one product without a mask. Which window comes first makes no difference to the
result, because the order is undone behind the tower.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ollama_engine.input import Int32Array

__all__ = ["WindowGroup", "Windows"]


class WindowGroup(NamedTuple):
    """Consecutive windows of one size."""

    windows: int
    blocks: int
    """Blocks of each window."""


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """The windows of an image of rows times columns of blocks."""

    order: Int32Array
    """[rows * columns]: the block at each place, in the order of windows; blocks are numbered row by row."""
    groups: tuple[WindowGroup, ...]

    @classmethod
    def of(cls, rows: int, columns: int, side: int) -> Windows:
        """Windows of up to `side` blocks along each edge."""
        blocks = np.arange(rows * columns, dtype=np.int32).reshape(rows, columns)
        order: list[Int32Array] = []
        groups: list[WindowGroup] = []
        for top, bottom, height in _bands(rows, side):
            for left, right, width in _bands(columns, side):
                part = blocks[top:bottom, left:right]
                part = part.reshape((bottom - top) // height, height, (right - left) // width, width)
                groups.append(WindowGroup(part.shape[0] * part.shape[2], height * width))
                order.append(part.swapaxes(1, 2).reshape(-1))
        return cls(np.concatenate(order), tuple(groups))


def _bands(n: int, side: int) -> Iterator[tuple[int, int, int]]:
    """The whole windows along an edge of `n` blocks, and the rest: (begin, end, size of a window)."""
    whole = n // side * side
    if whole:
        yield 0, whole, side
    if whole < n:
        yield whole, n, n - whole
