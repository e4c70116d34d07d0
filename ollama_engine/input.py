"""The nouns that cross rooms: what a sequence is made of, and what is computed in one step. Plain numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Batch", "Input", "Int32Array"]

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Input:
    """One place of a sequence: a token, or (later rooms) an embedding that stands for one."""

    token: int
    media_hash: int | None = None
    """Content hash of what an embedding was made from; part of the identity when prefixes are compared."""
    same_batch: int = 0
    """How many of the inputs that follow must be computed in the same batch."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Tokens for one forward pass, of any number of sequences. All arrays have one entry for each token.

    `outputs` are the rows (indices into the batch, ascending) whose logits are wanted. Rows of one sequence with the
    same number of 0 or more in `blocks` attend to each other, whatever their order: one image; -1 for all others.
    `images` are the rows with which an image for cross-attention comes along. `types` say which of a pair of texts a
    token is of, 0 or 1, for encoders; None where all are of the first.
    """

    tokens: Int32Array
    positions: Int32Array
    sequences: Int32Array
    outputs: Int32Array
    blocks: Int32Array | None = None
    images: Int32Array | None = None
    types: Int32Array | None = None

    @classmethod
    def of(
        cls, tokens: Sequence[int], first_position: int, sequence: int = 0, outputs: Sequence[int] | None = None
    ) -> Batch:
        """A run of one sequence from `first_position` on; by default the last row's logits are wanted."""
        n = len(tokens)
        return cls(
            tokens=np.asarray(tokens, dtype=np.int32),
            positions=np.arange(first_position, first_position + n, dtype=np.int32),
            sequences=np.full(n, sequence, dtype=np.int32),
            outputs=np.asarray([n - 1] if outputs is None else outputs, dtype=np.int32),
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def first_positions(self) -> dict[int, int]:
        """{sequence: its lowest position}."""
        firsts: dict[int, int] = {}
        for sequence, position in zip(self.sequences.tolist(), self.positions.tolist(), strict=True):
            firsts[sequence] = min(firsts.get(sequence, position), position)
        return firsts
