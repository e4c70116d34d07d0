"""Contracts of a cache, split by audience.

LayerView   models, while a graph is built; ImageView in layers that attend to images, StateView in recurrent ones
StepCache   the executor, for one step
Cache       the runner: what every cache does for sequences
Shiftable, Saveable, Recurrent, Defragmentable   optional: `Cache.shiftable` and its like are None for caches that
lack them
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from ollama_engine.input import Batch, Int32Array
from ollama_engine.kvcache.rows import SavedRows, Saving
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor


@dataclass(frozen=True, slots=True)
class KVIndices:
    """KV indices (FlashInfer): the cells that each row attends to. `ops.paged_attention` takes them, not a mask."""

    ranges: Tensor
    """i32 [2, n]: for each row its part of `indices`, [begin, end)."""
    indices: Tensor
    """i32 [room]: cells of the history; those of one sequence are in the order of positions."""
    phases: Tensor | None = None
    """i32 [n]: position of the first cell that each row sees; None where that is 0 for all."""


class LayerView(Protocol):
    """A layer's cache, as models see it while a graph is built."""

    @property
    def flash_attention(self) -> bool:
        """Whether `get` returns values in flash attention's layout; otherwise permuted, for two plain products."""

    @property
    def rotation(self) -> int:
        """Numbers of the runs in which the layer's keys and values are stored rotated; 0: they are not.

        Queries are rotated likewise, and the result of attention back. See `kvcache/rotation.py`.
        """

    def set_layer(self, layer: int) -> None:
        """Choose the layer for the next `put` and `get`."""

    def put(self, key: Tensor, value: Tensor) -> None:
        """Store keys [key_dim, kv_heads, n] and values [value_dim, kv_heads, n] of this batch's tokens."""

    def get(self) -> tuple[Tensor, Tensor, Tensor | KVIndices]:
        """Keys [key_dim, history, kv_heads], values, and a mask f16 [history, n] or the KV indices of the rows.

        Values are [value_dim, history, kv_heads] with flash attention and [history, value_dim, kv_heads] without.
        Only flash attention has indices.
        """


@runtime_checkable
class OutputIndices(Protocol):
    """A layer's cache that also says what the batch's outputs see, for layers that compute no other rows."""

    def output_indices(self, n: int) -> KVIndices | None:
        """The KV indices of the `n` rows of `Batch.outputs`; None where `get` gives a mask."""


class ImageView(LayerView, Protocol):
    """The cache of layers that attend to images, as models see it. `put` stores images that are new in this batch."""

    @property
    def sees_images(self) -> bool:
        """Whether any row of this batch sees an image; where none does, `get` and `gate` raise ValueError."""

    @property
    def gate(self) -> Tensor:
        """f32 [1, n]: 1 for rows that see an image, 0 for rows whose result must be dropped."""


@dataclass(frozen=True, slots=True)
class Segments:
    """A batch's rows as recurrent layers take them: runs of rows of one sequence, between two of its states.

    A sequence has as many segments as states are written for it, one after the other. Segments that pad
    `bounds` and `slots` are empty.
    """

    rows: Tensor
    """i32 [n]: the batch's rows, ordered by sequence and position."""
    bounds: Tensor
    """i32 [2, m]: for each segment its part of `rows`, [begin, end)."""
    slots: Tensor
    """i32 [2, m]: for each segment the slot whose state it reads, and the one that it writes. The number of slots
    stands for none: the segment begins with zeros, or writes nothing."""

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """`rows`, `bounds` and `slots`, as operations take them."""
        return self.rows, self.bounds, self.slots


class StateView(Protocol):
    """The states of a recurrent layer, as models see them while a graph is built: `nn.recurrent` computes with them."""

    @property
    def segments(self) -> Segments:
        """The runs of rows that go on from one state to another."""

    def part(self, number: int) -> Tensor | None:
        """A part of the current layer's states, f32 [elements, slots]; None where none are stored."""

    def written(self, result: Tensor) -> None:
        """Have `result` computed, since computing it writes states: also where nothing else reads it."""


class RecurrentView(LayerView, Protocol):
    """The cache of a model with recurrent layers, as models see it."""

    @property
    def states(self) -> StateView:
        """The states of the current layer."""


class GraphInputs(NamedTuple):
    """The inputs that a cache has in one graph."""

    seen: tuple[Tensor, ...]
    """Those that say what the graph's rows see (mask or KV indices)."""
    write: Callable[[], None]
    """Writes the current batch's values, whose shape is the graph's."""


class StepCache(LayerView, Protocol):
    """A cache as the executor sees it, for one step."""

    def begin(self, batch: Batch) -> None:
        """Find room for the batch's tokens. Raises ContextOverflowError, changing nothing, when there is too little."""

    def roll_back(self, batch: Batch) -> None:
        """Undo `begin`: the batch was not computed, so its tokens leave the cache."""

    def worst_cases(self, n_tokens: int) -> Iterator[None]:
        """Prepare in turn for each worst-case graph of `n_tokens` tokens, so that it can be built. Takes no cells."""

    @property
    def shape_key(self) -> tuple[int, ...]:
        """The sizes of the current batch that shape the graph. A graph can be reused where the key is equal."""

    def build_inputs(self, ctx: Context) -> GraphInputs:
        """Make the input tensors of a new graph. `put` and `get` are about the graph that was begun last."""


@dataclass(frozen=True, slots=True)
class CellUsage:
    """How many cells of a cache are in use. A composite cache reports its fullest part."""

    used: int = 0
    """Cells of tokens that some later token sees."""
    free: int = 0
    shared: int = 0
    """Used cells that two sequences or more share."""


class Cache(StepCache, Protocol):
    """A cache as the runner sees it: keeps sequences, shares their prefixes, and says where they can be resumed.

    A sequence is a number from 0 to MAX_SEQUENCES - 1; its tokens have positions. Bookkeeping takes memory by the
    highest number in use and by the tokens held. Several sequences may share the cells of a common prefix; a cell is
    free when no sequence has it.
    """

    @property
    def room(self) -> int:
        """Tokens that `begin` has room for, if each continues its sequence; a large number where all fit."""

    def require_room(self, batch: Batch) -> None:
        """Raise ContextOverflowError where `begin` would. Changes nothing."""

    def share(self, source: int, target: int, end: int) -> None:
        """Share the tokens of `source` below position `end` with `target`, which is empty. Copies nothing."""

    def can_resume(self, sequence: int, position: int) -> bool:
        """Whether the cache still holds every earlier position that tokens from `position` on attend to.

        A cache with a window keeps those for `memory` positions back, and frees older ones as soon as it needs cells.
        So `share`, or `remove` what comes after `position`, before the next step.
        """

    def remove(self, sequence: int, begin: int = 0, end: int | None = None) -> None:
        """Forget tokens of a sequence, from position `begin` to before `end`."""

    @property
    def shiftable(self) -> Shiftable | None:
        """None where positions cannot change: a context shift then computes the remaining tokens again."""

    @property
    def saveable(self) -> Saveable | None:
        """None where sequences cannot be saved and restored."""

    @property
    def recurrent(self) -> Recurrent | None:
        """None where no layer has a recurrent state."""

    @property
    def defragmentable(self) -> Defragmentable | None:
        """None where the cost of a step does not depend on where cells lie, so that moving them gains nothing."""

    def scrub(self) -> None:
        """Zero the free cells. For after a step that computed NaN or infinity: a mask does not hide those."""

    def check(self) -> None:
        """Raise AssertionError unless the bookkeeping is consistent; for tests and debugging."""

    @property
    def usage(self) -> CellUsage:
        """How full the cache is. Any thread may ask."""

    @property
    def nbytes(self) -> dict[str, int]:
        """Memory of keys and values, {device name: bytes}."""

    @property
    def mask_bytes(self) -> int:
        """Host memory for making masks and indices, in bytes."""

    def close(self) -> None:
        """Free the tensors. Any later call on the cache is an error."""


class Shiftable(Protocol):
    """Changes positions. No step may be in flight, and every allocated graph loses its memory."""

    def require_shift(self, sequence: int, begin: int, discard: int, without: Collection[int] = ()) -> None:
        """Raise ContextOverflowError or ValueError where `shift` would. Changes nothing.

        `without`: sequences that count as removed for this question.
        """

    def shift(self, sequence: int, begin: int, discard: int) -> None:
        """Forget `discard` positions from `begin` on; tokens behind them move down by `discard`.

        Other sequences keep what they share. Call `can_resume` for the next position afterwards: where a window had
        dropped tokens before `begin`, some are missing. Raises ContextOverflowError, changing nothing, when too few
        cells are free to copy shared ones into, and ValueError where `discard` is not positive. Where the computation
        fails, raises its error; the sequence has then lost everything from `begin` on.
        """

    def reserve(self) -> None:
        """Take the memory for the largest shift now. Raises NoMemoryError."""


class Recurrent(Protocol):
    """Keeps recurrent states. A sequence can be resumed where one of them is, and nowhere else.

    A step leaves a state at its end. It also keeps the states behind the rows of `Batch.checkpoints`, as far as there
    is room; the least recently used one is given up for a new one.
    """

    def latest(self, sequence: int, most: int) -> int:
        """The highest position up to `most` with a state; 0 where there is none: any sequence can begin."""

    def hold(self, sequence: int) -> None:
        """Keep the sequence's latest state until `release`: a request computes with it."""

    def release(self, sequence: int, length: int) -> None:
        """Undo `hold`. States of the sequence, whose wanted inputs end at `length`, stay until their room is needed."""

    @property
    def nbytes(self) -> dict[str, int]:
        """Memory of the states, {device name: bytes}."""


class Defragmentable(Protocol):
    """Moves cells together. No step may be prepared or in flight, and every allocated graph loses its memory."""

    def due(self, sequences: Int32Array, rows: int) -> bool:
        """Whether moving cells pays while these sequences compute `rows` rows more. Changes nothing.

        So it is where at least half of the run of cells that attention reads for them is free, and reading the free
        cells would take longer than closing the gaps. Cheap enough for every step.
        """

    def defrag(self, sequences: Int32Array, rows: int) -> int:
        """Close gaps in that run where it is `due`, and return how many cells moved: a bounded number.

        Cells keep their order and their bits. While some are left to move, it stays due. Raises what a computation
        raises; it is then unknown what the cells of any sequence hold.
        """

    def reserve(self) -> None:
        """Take the memory for moving cells now. Raises NoMemoryError."""


class Saveable(Protocol):
    """Saves and restores sequences. No step may be in flight."""

    @property
    def row_bytes(self) -> tuple[tuple[int, ...], ...]:
        """Bytes of one row in each array of `SavedRows.rows`, for each kind of layers that `save` returns."""

    def first_seen(self, position: int) -> tuple[int, ...]:
        """The lowest position that a token at `position` sees in each kind of layers: `save` of a part keeps those."""

    @property
    def image_kinds(self) -> tuple[int, ...]:
        """Numbers of the kinds that have entries of images of cross-attention alone, which any later token may see."""

    def save(self, sequence: int, begin: int = 0, end: int | None = None) -> list[SavedRows]:
        """What the cache holds of a sequence at positions [begin, end), one entry for each kind of layers."""

    def saving(self, sequence: int, begin: int = 0, end: int | None = None) -> Saving:
        """`save`, piece by piece: steps may be computed between. What is given up meanwhile is left out."""

    def require_restore(self, saved: Sequence[SavedRows], without: Collection[int] = ()) -> None:
        """Raise ContextOverflowError where `restore` would. Changes nothing.

        `without`: sequences that count as removed for this question.
        """

    def restore(self, sequence: int, saved: Sequence[SavedRows]) -> None:
        """Put what `save` returned behind what `sequence` holds. It may come from another cache of the same layout.

        Caches have the same layout where `row_bytes` and element type are equal. No step may be prepared. Raises
        ContextOverflowError, changing nothing, when there is too little room.
        """

    def reserve(self) -> None:
        """Take the memory for saving and restoring now. Raises NoMemoryError."""
