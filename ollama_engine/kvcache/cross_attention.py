"""Cross-attention cache: keys and values of images (Llama 3.2 Vision), kept from batch to batch.

A token sees all rows of the latest image of its sequence, and of those right before that one without a token between
them, as Llama 3.2's processor has it. An image comes with the batch that holds its token (`Batch.images`); it leaves
when that position is removed.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ollama_engine.errors import ContextOverflowError
from ollama_engine.input import Batch
from ollama_engine.kvcache.base import CellUsage, GraphInputs
from ollama_engine.kvcache.config import CacheConfig, LayerShape
from ollama_engine.kvcache.image_saving import ImageSaver
from ollama_engine.kvcache.images import ImageSlots, Place
from ollama_engine.kvcache.shifting import require_valid
from ollama_engine.kvcache.span import CellSpan
from ollama_engine.kvcache.store import CellIndices, KeyValueStore
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor

_Mask = np.ndarray[tuple[int, ...], np.dtype[np.float16]]

NOTHING = CellSpan(0, 0)
_MINUS_INFINITY = np.float16(-np.inf)


@dataclass(slots=True)
class _Graph:
    ctx: Context
    targets: CellIndices | None
    mask: Tensor | None
    gate: Tensor | None


class CrossAttentionCache:
    """Room for `n_images` images of up to `layers[0].image_rows` rows each. Arguments and errors as in CausalCache.

    Beyond LayerView, models read `sees_images` (False: skip the layer) and `gate`. `put` must store the `new_rows` rows
    of the images of `Batch.images`, in their order.
    """

    def __init__(
        self,
        backend: Backend,
        layers: Sequence[LayerShape],
        devices: Sequence[int],
        n_images: int,
        config: CacheConfig,
    ) -> None:
        rows = layers[0].image_rows
        if rows is None or any(layer.image_rows != rows for layer in layers):
            raise ValueError("all layers of one cross-attention cache have the same image_rows")
        # -- configuration --
        self.config = config
        self._rows = rows
        # -- storage --
        padding = config.history_padding
        self._store = KeyValueStore(backend, layers, devices, -(-n_images * rows // padding) * padding, config)
        # -- metadata --
        self.slots = ImageSlots(n_images)
        # -- optional contracts --
        self.shiftable = ImageShifter(self.slots)
        self.saveable = ImageSaver(self.slots, self._store, rows)
        self.recurrent = None
        self.defragmentable = None
        # -- current batch --
        self._new: list[int] = []
        self._n_new_rows = 0
        self._seen: list[tuple[int, ...]] = []
        self._span = NOTHING
        # -- current graph --
        self._layer = 0
        self._graph: _Graph | None = None

    # ** used by models ************************************************************************************************

    rotation = 0

    @property
    def flash_attention(self) -> bool:
        return self.config.flash_attention

    @property
    def new_rows(self) -> int:
        """Rows of this batch's new images, whose keys and values `put` must store in every layer."""
        return self._n_new_rows

    @property
    def sees_images(self) -> bool:
        """Whether any token of this batch sees an image; where none does, `get` and `gate` raise ValueError."""
        return any(self._seen)

    @property
    def gate(self) -> Tensor:
        """f32 [1, n]: 1 for tokens that see an image, 0 for tokens whose result must be dropped."""
        if self._graph is None or self._graph.gate is None:
            raise ValueError("no token of this batch sees an image; skip the layer")
        return self._graph.gate

    def set_layer(self, layer: int) -> None:
        self._layer = layer

    def put(self, key: Tensor, value: Tensor) -> None:
        """Store keys [key_dim, kv_heads, rows] and values [value_dim, kv_heads, rows] of this batch's new images."""
        if self._graph is None or self._graph.targets is None:
            raise ValueError("no image comes with this batch")
        targets = self._graph.targets
        targets.ctx.expand(self._store.write_keys(self._layer, key, targets))
        targets.ctx.expand(self._store.write_values(self._layer, value, targets))

    def get(self) -> tuple[Tensor, Tensor, Tensor]:
        """Keys [key_dim, history, kv_heads] and values of what is seen, and the mask f16 [history, n]."""
        if self._graph is None or self._graph.mask is None:
            raise ValueError("no token of this batch sees an image; skip the layer")
        keys, values = self._store.history(self._layer, self._span.begin, self._span.end, self._graph.ctx)
        return keys, values, self._graph.mask

    # ** used by the executor ******************************************************************************************

    def begin(self, batch: Batch) -> None:
        """Find slots for the batch's images. Raises ContextOverflowError, changing nothing, when too few are free."""
        new, self._new = self._find(batch)
        self.slots.place(new, self._new, self._rows_of(batch))
        self._n_new_rows = sum(self.slots.n_rows[slot] for slot in self._new)
        if self.slots.used:
            rows = zip(batch.sequences.tolist(), batch.positions.tolist(), strict=True)
            self._seen = [self.slots.seen_by(sequence, position) for sequence, position in rows]
        else:
            self._seen = [()] * len(batch)
        self._span = self._span_of({slot for slots in self._seen for slot in slots})

    def _span_of(self, slots: set[int]) -> CellSpan:
        """The run of cells that holds these slots, as far as they are filled, between multiples of the padding."""
        if not slots:
            return NOTHING
        padding = self.config.history_padding
        end = max(slot * self._rows + self.slots.n_rows[slot] for slot in slots)
        return CellSpan(min(slots) * self._rows // padding * padding, -(-end // padding) * padding)

    def roll_back(self, batch: Batch) -> None:
        """Remove the batch's images again."""
        for sequence, first in batch.first_positions().items():
            self.slots.remove(sequence, first)

    def worst_cases(self, n_tokens: int) -> Iterator[None]:
        """Prepare for building a worst-case graph: as many new images as a batch may have, all slots seen."""
        self._new = list(range(min(n_tokens, self.config.images)))
        self._n_new_rows = len(self._new) * self._rows
        self._seen, self._span = [(0,)] * n_tokens, CellSpan(0, self._store.n_cells)
        yield

    @property
    def shape_key(self) -> tuple[int, ...]:
        """Numbers of tokens and of rows of new images, and the run of cells."""
        return (len(self._seen), self._n_new_rows, *self._span)

    def build_inputs(self, ctx: Context) -> GraphInputs:
        """Make the inputs of a new graph: rows for new images; mask f16 [history, tokens] and gate f32 [1, tokens]."""
        n, rows = len(self._seen), self._n_new_rows
        self._graph = _Graph(
            ctx,
            CellIndices(ctx, self._store, rows, "i64", "image_rows") if self._new else None,
            ctx.input("f16", (self._span.n, n), name="image_mask") if self.sees_images else None,
            ctx.input("f32", (1, n), name="image_gate") if self.sees_images else None,
        )
        seen = tuple(seen for seen in (self._graph.mask, self._graph.gate) if seen is not None)
        return GraphInputs(seen, partial(self._write, self._graph))

    def _write(self, graph: _Graph) -> None:
        if graph.targets is not None:
            cells = [slot * self._rows + row for slot in self._new for row in range(self.slots.n_rows[slot])]
            graph.targets.set(np.array(cells, dtype=np.int32))
        if graph.mask is not None and graph.gate is not None:
            graph.mask.set(self._mask())
            graph.gate.set(np.array([[bool(slots)] for slots in self._seen], dtype=np.float32))

    def _mask(self) -> _Mask:
        mask = np.empty((len(self._seen), self._span.n), dtype=np.float16)
        kinds: dict[tuple[int, ...], list[int]] = {}
        for row, slots in enumerate(self._seen):
            kinds.setdefault(slots, []).append(row)
        for slots, rows in kinds.items():
            mask[rows] = self._row_of_mask(slots)
        return mask

    def _row_of_mask(self, slots: tuple[int, ...]) -> _Mask:
        """The row of the mask that shows these slots, f16 [history]."""
        row = np.full(self._span.n, _MINUS_INFINITY)
        for slot in slots:
            begin = slot * self._rows - self._span.begin
            row[begin : begin + self.slots.n_rows[slot]] = 0
        if not slots:
            # Softmax over nothing is NaN, so a row without an image sees one cell. The gate drops its result.
            row[0] = 0
        return row

    # ** used by the runner ********************************************************************************************

    @property
    def room(self) -> int:
        """Unlimited: tokens take no slot here. Images do, see `require_room`."""
        return sys.maxsize

    def require_room(self, batch: Batch) -> None:
        """Raise ContextOverflowError where `begin` would. Changes nothing."""
        self._find(batch)

    def _find(self, batch: Batch) -> tuple[list[Place], list[int]]:
        rows: Iterable[int] = [] if batch.images is None else batch.images
        new = [(int(batch.sequences[row]), int(batch.positions[row])) for row in rows]
        slots = self.slots.find(new, batch.first_positions())
        if slots is None:
            raise ContextOverflowError(
                f"{len(new)} images do not fit: the others of {self.slots.n_slots} are still seen by some token"
            )
        return new, slots

    def _rows_of(self, batch: Batch) -> list[int]:
        """How many rows each of the batch's images has."""
        known = {part.row: part.item.n_rows for part in batch.media if part.item.n_rows is not None}
        return [] if batch.images is None else [known.get(row, self._rows) for row in batch.images.tolist()]

    def share(self, source: int, target: int, end: int) -> None:
        """Share the images of `source` below position `end` with `target`, which is empty."""
        self.slots.share(source, target, end)

    def can_resume(self, sequence: int, position: int) -> bool:
        """Whether the cache still holds the images before `position` that a token there sees."""
        return self.slots.can_resume(sequence, position)

    def remove(self, sequence: int, begin: int = 0, end: int | None = None) -> None:
        """Forget images of a sequence, from position `begin` to before `end`."""
        self.slots.remove(sequence, begin, end)

    def scrub(self) -> None:
        """Zero the free slots. For after a step that computed NaN or infinity: a mask does not hide those."""
        used = self.slots.used
        slots = np.arange(self._store.n_cells) // self._rows
        self._store.zero(~np.isin(slots, list(used)))

    def check(self) -> None:
        self.slots.check()

    @property
    def usage(self) -> CellUsage:
        """Usage in images, not in cells."""
        used = len(self.slots.used)
        return CellUsage(used, self.slots.n_slots - used, self.slots.n_shared)

    @property
    def nbytes(self) -> dict[str, int]:
        return self._store.nbytes

    @property
    def mask_bytes(self) -> int:
        """0: the mask has no buffer of its own; it is made for each step."""
        return 0

    def close(self) -> None:
        self._store.close()


class ImageShifter:
    """Shifts the positions of images. Their keys carry no position, so they stay. See `Shiftable`."""

    def __init__(self, slots: ImageSlots) -> None:
        self._slots = slots

    def require_shift(self, sequence: int, begin: int, discard: int, without: Collection[int] = ()) -> None:
        """Raise ValueError where `shift` would."""
        require_valid(begin, discard)

    def shift(self, sequence: int, begin: int, discard: int) -> None:
        """Forget the images of `discard` positions from `begin` on; later images move down."""
        require_valid(begin, discard)
        self._slots.shift(sequence, begin, discard)

    def reserve(self) -> None:
        """Does nothing: a shift renumbers slots and computes no graph, so it needs no memory."""
