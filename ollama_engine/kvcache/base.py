"""Contracts of a cache, split by audience.

LayerView   models, while a graph is built
StepCache   the executor, for one step
Cache       the runner: what every cache does for sequences
Shiftable, Saveable   what some caches can do besides; `Cache.shiftable` and `Cache.saveable` say which
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ollama_engine.input import Batch
from ollama_engine.kvcache.rows import SavedRows
from ollama_engine.ml.context import Context
from ollama_engine.ml.tensor import Tensor


@dataclass(frozen=True, slots=True)
class KVIndices:
    """What each row attends to, in place of a mask, as FlashInfer's paged KV indices: for `ops.paged_attention`."""

    ranges: Tensor
    """i32 [2, n]: where in `indices` those of each row begin, and before what they end."""
    indices: Tensor
    """i32 [room]: cells of the history, those of a sequence in the order of positions."""


class LayerView(Protocol):
    """What models call while a graph is built."""

    @property
    def flash_attention(self) -> bool:
        """Whether `get` hands out what flash attention reads, or values permuted for two products."""

    def set_layer(self, layer: int) -> None:
        """Choose the layer that `put` and `get` speak of."""

    def put(self, key: Tensor, value: Tensor) -> None:
        """Store keys [key_dim, kv_heads, n] and values [value_dim, kv_heads, n] of this batch's tokens."""

    def get(self) -> tuple[Tensor, Tensor, Tensor | KVIndices]:
        """Keys [key_dim, history, kv_heads], values, and what the rows see: a mask f16 [history, n], or indices.

        Values are [value_dim, history, kv_heads] with flash attention and [history, value_dim, kv_heads] without.
        Indices come with flash attention only.
        """


class StepCache(LayerView, Protocol):
    """What the executor calls, for one step."""

    def begin(self, batch: Batch) -> None:
        """Find room for the batch's tokens. Raises ContextOverflowError, changing nothing, when there is too little."""

    def roll_back(self, batch: Batch) -> None:
        """The batch that `begin` took was not computed: nothing holds its tokens."""

    def worst_cases(self, n_tokens: int) -> Iterator[None]:
        """Prepare for building each of the worst-case graphs of as many tokens in turn; no cells are taken."""

    @property
    def shape_key(self) -> tuple[int, ...]:
        """What of the current batch shapes the graph; graphs of one key are interchangeable."""

    def build_inputs(self, ctx: Context) -> tuple[Tensor, ...]:
        """Make the input tensors (cell indices, mask) of a new graph; those that say what its rows see."""

    def write_inputs(self) -> None:
        """Write the current batch's values into the inputs of the latest graph."""


@dataclass(frozen=True, slots=True)
class CellUsage:
    """What the cells of a cache hold; of several caches in one, the fullest."""

    used: int = 0
    """Cells of tokens that some later token sees."""
    free: int = 0
    shared: int = 0
    """Of the used ones, those of two sequences or more."""


class Cache(StepCache, Protocol):
    """What the runner calls: every cache keeps sequences, shares their beginnings, and says what it can go on from.

    A sequence is a number from 0 to MAX_SEQUENCES - 1; its tokens have positions. Memory goes by the highest number
    and by what is held. Several sequences may share the cells of a common beginning; a cell is free when no sequence
    has it.
    """

    @property
    def room(self) -> int:
        """Tokens that `begin` has room for, if they go on where their sequences end; a large number where all fit."""

    def require_room(self, batch: Batch) -> None:
        """Raise ContextOverflowError where `begin` would. Changes nothing."""

    def share(self, source: int, target: int, end: int) -> None:
        """Let `target`, which is empty, have what `source` has below position `end`, without copying."""

    def can_resume(self, sequence: int, position: int) -> bool:
        """Whether all is there that a token at `position` and later ones attend to, of the positions before it.

        A cache of windows keeps that for `memory` positions back, and gives the rest up as soon as cells are needed; so
        `share` or `remove` what comes after `position` before the next step.
        """

    def remove(self, sequence: int, begin: int = 0, end: int | None = None) -> None:
        """Forget tokens of a sequence, from position `begin` to before `end`."""

    @property
    def shiftable(self) -> Shiftable | None:
        """None where positions cannot change: then the tokens that stay have to be computed again."""

    @property
    def saveable(self) -> Saveable | None:
        """None where sequences cannot be taken out."""

    def scrub(self) -> None:
        """Zero the free cells. For after a step that computed NaN or infinity: a mask does not hide those."""

    def check(self) -> None:
        """Raise AssertionError unless the bookkeeping is consistent; for tests and debugging."""

    @property
    def usage(self) -> CellUsage:
        """How full it is. May be asked from any thread."""

    @property
    def nbytes(self) -> dict[str, int]:
        """Memory of keys and values, {device name: bytes}."""

    @property
    def mask_bytes(self) -> int:
        """Memory of the process in which masks and indices are made."""

    def close(self) -> None:
        """Free the tensors. Any later call on the cache is an error."""


class Shiftable(Protocol):
    """Positions can change. No step may be in flight, and graphs that were allocated lose their memory."""

    def require_shift(self, sequence: int, begin: int, discard: int, without: Collection[int] = ()) -> None:
        """Raise ContextOverflowError or ValueError where `shift` would. Changes nothing.

        `without` asks how it were if these other sequences had been removed.
        """

    def shift(self, sequence: int, begin: int, discard: int) -> None:
        """Forget `discard` positions from `begin` on; those that follow move down by as many.

        What other sequences share stays as it is for them. Ask `can_resume` for the next position afterwards: where a
        window had dropped tokens before `begin`, some are missing. Raises ContextOverflowError, changing nothing,
        when there are too few free cells to copy shared ones into, and ValueError for a shift by nothing. When the
        computation fails, that error is raised, and the sequence has lost everything from `begin` on.
        """

    def reserve(self) -> None:
        """Take the memory for that now. Raises NoMemoryError."""


class Saveable(Protocol):
    """Sequences can be taken out and put back. No step may be in flight, and graphs lose their memory."""

    @property
    def row_bytes(self) -> tuple[tuple[int, ...], ...]:
        """Bytes of one entry in each array of rows, for each kind of what `save` gives."""

    def save(self, sequence: int) -> list[SavedRows]:
        """What a sequence has, for each kind of layers."""

    def require_restore(self, saved: Sequence[SavedRows], without: Collection[int] = ()) -> None:
        """Raise ContextOverflowError where `restore` would. Changes nothing.

        `without` asks how it were if these sequences had been removed.
        """

    def restore(self, sequence: int, saved: Sequence[SavedRows]) -> None:
        """Give `sequence`, which is empty, what `save` gave, here or in another cache of the same `row_bytes` and type.

        No step may be prepared. Raises ContextOverflowError, changing nothing, when there is too little room.
        """

    def reserve(self) -> None:
        """Take the memory for that now. Raises NoMemoryError."""
