"""Visibility: the positions that a token attends to. It decides what masks and KV indices contain.

A token attends to a run of positions of its own sequence, from `first` to `last`. The run ends with the token itself,
or with the end of its block where the batch has blocks (the tokens of one image see each other).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ollama_engine.input import Batch, Int32Array


@dataclass(frozen=True, kw_only=True)
class Visibility:
    """How far back a token sees.

    `window` W: the token itself and the W - 1 before it. `chunk` C: positions from the last multiple of C on (Llama 4).
    Neither: all positions up to its own. With `causal_images` blocks of the batch mean nothing.
    """

    window: int | None = None
    chunk: int | None = None
    causal_images: bool = False

    def __post_init__(self) -> None:
        if self.window is not None and self.chunk is not None:
            raise ValueError("a layer attends within a window or within a chunk, not both")
        if any(limit is not None and limit < 1 for limit in (self.window, self.chunk)):
            raise ValueError(f"window and chunk are at least 1, got {self}")

    @property
    def limited(self) -> bool:
        """Whether a token may see later positions than 0 only."""
        return self.window is not None or self.chunk is not None

    def first(self, positions: Int32Array) -> Int32Array:
        """The lowest position that each token sees; below 0 where its window is not full."""
        if self.window is not None:
            return positions - np.int32(min(self.window, 2**31 - 1) - 1)
        if self.chunk is not None:
            return positions - positions % np.int32(min(self.chunk, 2**31 - 1))
        return np.zeros(len(positions), np.int32)

    def first_of(self, position: int) -> int:
        """The lowest position that a token at `position` sees; it never falls as positions rise."""
        if self.window is not None:
            return max(0, position - self.window + 1)
        return position - position % self.chunk if self.chunk is not None else 0

    def last(self, batch: Batch) -> Int32Array:
        """The highest position that each row sees: its own, or the last of its block."""
        if batch.blocks is None or self.causal_images:
            return batch.positions
        last = batch.positions.copy()
        blocks = {(int(s), int(b)) for s, b in zip(batch.sequences, batch.blocks, strict=True) if b >= 0}
        for sequence, block in blocks:
            rows = (batch.sequences == sequence) & (batch.blocks == block)
            last[rows] = batch.positions[rows].max()
        return last
