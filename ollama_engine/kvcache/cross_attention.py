"""Cross-attention cache: keys and values of images (Llama 3.2 Vision), kept from batch to batch.

A token sees all rows of the latest image of its sequence. The image comes with the batch that holds its token
(`Batch.images`); it leaves when that position is removed.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ollama_engine.errors import ConfigError, ContextOverflowError
from ollama_engine.input import Batch
from ollama_engine.kvcache.base import CellUsage
from ollama_engine.kvcache.config import CacheConfig, LayerShape
from ollama_engine.kvcache.images import ImageSlots, Place
from ollama_engine.kvcache.rows import SavedRows
from ollama_engine.kvcache.store import CellIndices, KeyValueStore
from ollama_engine.ml.backend import Backend
from ollama_engine.ml.context import Context
from ollama_engine.ml.tensor import Tensor

_MINUS_INFINITY = np.float16(-np.inf)


@dataclass(slots=True)
class _Graph:
    ctx: Context
    targets: CellIndices | None
    mask: Tensor | None
    gate: Tensor | None


class CrossAttentionCache:
    """Room for `n_images` images of `layers[0].image_rows` rows each. Arguments and errors as in CausalCache.

    Beyond LayerView, models read `new_images` (how many `put` must store: image_rows * new_images rows, in the order
    of `Batch.images`), `sees_images` (False: skip the layer) and `gate`.
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
        # -- current batch --
        self._new: list[int] = []
        self._seen: list[int | None] = []
        self._history = 0
        # -- current graph --
        self._layer = 0
        self._graph: _Graph | None = None

    # ** used by the runner ********************************************************************************************

    @property
    def room(self) -> int:
        """Tokens take none; images do, see `require_room`."""
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

    def begin(self, batch: Batch) -> None:
        """Find slots for the batch's images. Raises ContextOverflowError, changing nothing, when too few are free."""
        new, self._new = self._find(batch)
        self.slots.place(new, self._new)
        rows = zip(batch.sequences, batch.positions, strict=True)
        self._seen = [self.slots.seen_by(int(s), int(p)) for s, p in rows]
        self._history = 0
        if self.sees_images:
            extent = (max(self.slots.used) + 1) * self._rows
            self._history = -(-extent // self.config.history_padding) * self.config.history_padding

    def begin_reserve(self, n_tokens: int) -> None:
        """Prepare for building a worst-case graph: one new image, all slots seen."""
        self._new, self._seen, self._history = [0], [0] * n_tokens, self._store.n_cells

    @property
    def shape_key(self) -> tuple[int, ...]:
        """Number of tokens and new images, and the padded history."""
        return (len(self._seen), len(self._new), self._history)

    def build_inputs(self, ctx: Context) -> None:
        """Make the inputs of a new graph: rows for new images; mask f16 [history, tokens] and gate f32 [1, tokens]."""
        n, rows = len(self._seen), len(self._new) * self._rows
        self._graph = _Graph(
            ctx,
            CellIndices(ctx, self._store, rows, "i64", "image_rows") if self._new else None,
            ctx.input("f16", (self._history, n), name="image_mask") if self.sees_images else None,
            ctx.input("f32", (1, n), name="image_gate") if self.sees_images else None,
        )

    def write_inputs(self) -> None:
        """Write the current batch's rows, mask and gate into the inputs of the latest graph."""
        assert self._graph is not None
        if self._graph.targets is not None:
            cells = [slot * self._rows + row for slot in self._new for row in range(self._rows)]
            self._graph.targets.set(np.array(cells, dtype=np.int32))
        if self._graph.mask is not None and self._graph.gate is not None:
            self._graph.mask.set(self._mask())
            gate = np.array([[slot is not None] for slot in self._seen], dtype=np.float32)
            self._graph.gate.set(gate)

    def _mask(self) -> np.ndarray[tuple[int, ...], np.dtype[np.float16]]:
        mask = np.full((len(self._seen), self._history), _MINUS_INFINITY)
        for row, slot in enumerate(self._seen):
            # A row that sees nothing would have no softmax; its result is gated off.
            shown = slice(None) if slot is None else slice(slot * self._rows, (slot + 1) * self._rows)
            mask[row, shown] = 0
        return mask

    def share(self, source: int, target: int, end: int) -> None:
        """Let `target`, which is empty, have the images of `source` below position `end`."""
        self.slots.share(source, target, end)

    def can_resume(self, sequence: int, position: int) -> bool:
        """Whether the image that a token at `position` sees is there, if one came before it."""
        return self.slots.can_resume(sequence, position)

    def remove(self, sequence: int, begin: int = 0, end: int | None = None) -> None:
        """Forget images of a sequence, from position `begin` to before `end`."""
        self.slots.remove(sequence, begin, end)

    @property
    def can_shift(self) -> bool:
        """Keys of images have no positions."""
        return True

    def require_shift(self, sequence: int, begin: int, discard: int, without: Collection[int] = ()) -> None:
        """Raise ValueError where `shift` would."""
        if begin < 0 or discard < 1:
            raise ValueError(f"a shift begins at 0 or later and discards 1 or more, got {begin} and {discard}")

    def shift(self, sequence: int, begin: int, discard: int) -> None:
        """Forget images of `discard` positions from `begin` on; those that follow move down."""
        self.require_shift(sequence, begin, discard)
        self.slots.shift(sequence, begin, discard)

    def defrag(self) -> int:
        """Images stay where they are."""
        return 0

    def reserve_moves(self) -> None:
        """Images stay where they are."""

    @property
    def row_bytes(self) -> tuple[tuple[int, ...], ...]:
        """No tokens are stored."""
        return ()

    def save(self, sequence: int) -> list[SavedRows]:
        """Nothing. Raises ConfigError for a sequence with images: they are not taken out."""
        if self.slots.has_any(sequence):
            raise ConfigError("images cannot be taken out of the cache; save sequences of text only")
        return []

    def require_restore(self, saved: Sequence[SavedRows], without: Collection[int] = ()) -> None:
        """Nothing to put back."""

    def restore(self, sequence: int, saved: Sequence[SavedRows]) -> None:
        """Nothing to put back."""

    def scrub(self) -> None:
        """Zero the free slots. For after a step that computed NaN or infinity: a mask does not hide those."""
        used = self.slots.used
        slots = np.arange(self._store.n_cells) // self._rows
        self._store.zero(~np.isin(slots, list(used)))

    def check(self) -> None:
        """Raise AssertionError unless the table is consistent."""
        self.slots.check()

    @property
    def usage(self) -> CellUsage:
        """How full it is, in images."""
        used = self.slots.used
        return CellUsage(len(used), self.slots.n_slots - len(used), self.slots.n_shared, max(used, default=-1) + 1)

    @property
    def nbytes(self) -> dict[str, int]:
        """Memory taken, {device name: bytes}."""
        return self._store.nbytes

    @property
    def mask_bytes(self) -> int:
        """None is kept."""
        return 0

    def close(self) -> None:
        """Free the memory."""
        self._store.close()

    # ** used by models ************************************************************************************************

    @property
    def flash_attention(self) -> bool:
        """Whether values come as flash attention reads them, or permuted for two products."""
        return self.config.flash_attention

    @property
    def new_images(self) -> int:
        """Images of this batch whose keys and values `put` must store in every layer."""
        return len(self._new)

    @property
    def sees_images(self) -> bool:
        """Whether any token of this batch sees an image; where not, `get` and `gate` have nothing to give."""
        return any(slot is not None for slot in self._seen)

    @property
    def gate(self) -> Tensor:
        """f32 [1, n]: 1 for tokens that see an image, 0 for those whose result means nothing."""
        if self._graph is None or self._graph.gate is None:
            raise ValueError("no token of this batch sees an image; skip the layer")
        return self._graph.gate

    def set_layer(self, layer: int) -> None:
        """Choose the layer that `put` and `get` speak of."""
        self._layer = layer

    def put(self, key: Tensor, value: Tensor) -> None:
        """Store keys [key_dim, kv_heads, rows] and values [value_dim, kv_heads, rows] of this batch's new images."""
        if self._graph is None or self._graph.targets is None:
            raise ValueError("no image comes with this batch")
        targets = self._graph.targets
        targets.ctx.expand(self._store.write_keys(self._layer, key, targets))
        targets.ctx.expand(self._store.write_values(self._layer, value, targets))

    def get(self) -> tuple[Tensor, Tensor, Tensor]:
        """Keys [key_dim, history, kv_heads] and values of all images, and the mask f16 [history, n]."""
        if self._graph is None or self._graph.mask is None:
            raise ValueError("no token of this batch sees an image; skip the layer")
        keys, values = self._store.history(self._layer, 0, self._history, self._graph.ctx)
        return keys, values, self._graph.mask
