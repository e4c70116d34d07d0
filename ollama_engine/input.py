"""The nouns that cross rooms: what a sequence is made of, and what is computed in one step. No tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Batch", "BatchMedia", "FloatArray", "Input", "Int32Array", "MediaItem", "MediaTraits", "PreparedImage"]

Int32Array = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class PreparedImage:
    """An image as a model's vision tower takes it in, and the place that it takes in a prompt. No tensors."""

    arrays: Mapping[str, FloatArray | Int32Array]
    """Inputs of the vision graph, by the model's own names: pixels, positions of patches, masks."""
    n_inputs: int
    """Rows of embeddings; 1 with `cross_attention`."""
    grid: tuple[int, ...] = ()
    """Rows and columns of patches or tiles, in the model's own form: `post_tokenize` reads it."""
    positions: Int32Array | None = None
    """See `MediaItem.positions`."""
    n_positions: int | None = None
    """See `MediaItem.n_positions`."""
    cross_attention: bool = False
    n_rows: int | None = None
    """See `MediaItem.n_rows`."""


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True, eq=False)
class MediaItem:
    """One image (or another medium) as a model takes it in.

    Its embeddings stand at `n_inputs` consecutive inputs in place of those of tokens. With `cross_attention` they stand
    beside the text instead: the item has one input, and layers with cross-attention read its embeddings.
    """

    hash: int
    """Content hash: part of the identity of its inputs when prefixes are compared."""
    n_inputs: int
    embeddings: Callable[[], FloatArray]
    """float32 [n_inputs, `MediaTraits.row_width`], or [image rows, n_embd] with `cross_attention`.

    Called on the engine's thread each time that the item is computed with or saved: it remembers its result, or encodes
    the item again. Unless it is `ready`, only when nothing else computes.
    """
    positions: Int32Array | None = None
    """[axes, n_inputs], counted from where the item begins, for models with several position axes (M-RoPE). None:
    0, 1, 2, ... on each axis."""
    n_positions: int | None = None
    """How far the item moves the positions of what follows; None: by `n_inputs`."""
    cross_attention: bool = False
    grid: tuple[int, ...] = ()
    """`PreparedImage.grid`."""
    n_rows: int | None = None
    """With `cross_attention`: rows of its embeddings, where they are fewer than those of a largest image."""
    ready: Callable[[], bool] = _always
    """Whether `embeddings` returns at once. The scheduler plans no input of an item before."""

    def part(self, begin: int, end: int) -> MediaItem:
        """Rows [begin, end) as an item of its own, for models that write tokens between the parts of an image.

        All parts share one encoding. Positions count 0, 1, 2, ... in each part.
        """
        if not 0 <= begin < end <= self.n_inputs:
            raise ValueError(f"a part is within 0 to {self.n_inputs}, got {begin} to {end}")
        digest = (self.hash * 0x9E3779B97F4A7C15 + (begin << 32) + end) & (1 << 256) - 1  # as wide as it was
        return replace(self, hash=digest, n_inputs=end - begin, embeddings=lambda: self.embeddings()[begin:end],
                       positions=None, n_positions=None)  # fmt: skip

    @property
    def extra_positions(self) -> int:
        """How much further than one per input the item moves the positions of what follows; may be negative."""
        return 0 if self.n_positions is None else self.n_positions - self.n_inputs


@dataclass(frozen=True, slots=True)
class MediaTraits:
    """How a model wants media batched; the defaults are those of a model that reads none."""

    largest_group: int = 0
    """Inputs that may have to be computed in one batch: a largest image. Memory for as many is taken at start."""
    groups_per_batch: int | None = None
    """Most groups that share a batch; None: as many as fit. With cross-attention, memory is taken at start for storing
    so many images in one batch."""
    bidirectional: bool = False
    """Whether the inputs of one item attend to each other, whatever their order (Gemma 3)."""
    position_axes: int = 1
    """Position axes of the rotation: 3 or 4 with M-RoPE."""
    deepstack: int = 0
    """Layers whose results gain features of an image (deepstack, Meng et al. 2024): those of each lie behind an
    embedding, so that a row of embeddings is as long as `1 + deepstack` of them."""

    def row_width(self, n_embd: int) -> int:
        """Numbers in a row of embeddings; `n_embd` is the length of a token's."""
        return n_embd * (1 + self.deepstack)


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a sequence: a token, or one of the inputs of a media item."""

    token: int
    media: MediaItem | None = None
    """The item that begins with this input; it covers this one and the `n_inputs - 1` that follow."""
    same_batch: int = 0
    """How many of the inputs that follow must be computed in the same batch."""


class BatchMedia(NamedTuple):
    """Rows [row, row + n) of a batch are inputs [offset, offset + n) of a media item."""

    row: int
    n: int
    item: MediaItem
    offset: int = 0


@dataclass(slots=True, eq=False)  # not frozen: there is one for each step, made in a quarter of the time
class Batch:
    """Tokens for one forward pass, of any number of sequences. Arrays have one entry for each token.

    Attributes:
        tokens: ids, int32 [n].
        positions: each token's index in its sequence, int32 [n]; the cache finds cells by it.
        sequences: cache sequences, int32 [n].
        outputs: the rows (indices into the batch, ascending) whose logits are wanted.
        blocks: int32 [n]; rows of one sequence with the same number of 0 or more attend to each other, whatever their
            order: one image. -1 for all other rows. None: there are no such rows.
        images: the rows with which an image for cross-attention comes along, int32, ascending.
        types: which of a pair of texts a token is of, 0 or 1, for encoders; or its adapter, in models with adapters.
            None where all are 0.
        media: items whose embeddings are rows of this batch or, with cross-attention, come along with one.
        axes: positions for rotation, int32 [axes, n], for models with several axes. None: `positions`.
        checkpoints: rows behind which a recurrent cache keeps the state of their sequence for later. None: no such row.
        returns: rows behind which it keeps that state until the sequence goes on: what follows may be taken back.
        in_place: whether states may be changed in place: once launched, no row is taken back, and each is of another
            sequence.
    """

    tokens: Int32Array
    positions: Int32Array
    sequences: Int32Array
    outputs: Int32Array
    blocks: Int32Array | None = None
    images: Int32Array | None = None
    types: Int32Array | None = None
    media: tuple[BatchMedia, ...] = ()
    axes: Int32Array | None = None
    checkpoints: Int32Array | None = None
    returns: Int32Array | None = None
    in_place: bool = False

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

    @property
    def n_embedded(self) -> int:
        """Rows that are embeddings of media items."""
        return sum(part.n for part in self.media if not part.item.cross_attention)

    def embedded_rows(self) -> Int32Array:
        """The rows that are embeddings of media items, int32 [n_embedded]."""
        runs = [np.arange(part.row, part.row + part.n) for part in self.media if not part.item.cross_attention]
        return np.concatenate(runs).astype(np.int32) if runs else np.empty(0, np.int32)

    def first_positions(self) -> dict[int, int]:
        """The lowest position of each sequence in this batch, {sequence: position}."""
        firsts: dict[int, int] = {}
        for sequence, position in zip(self.sequences.tolist(), self.positions.tolist(), strict=True):
            firsts[sequence] = min(firsts.get(sequence, position), position)
        return firsts
