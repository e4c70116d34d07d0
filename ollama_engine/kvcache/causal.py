"""Causal cache: every token attends to the earlier tokens of its sequence: all, or those of a window or chunk.

Everything that changes from step to step is an input of the graph: the cells that the batch's tokens go to, and what
its rows see, as KV indices or as a mask (`histories.py`). So a graph is reused while the number of tokens stays the
same, and with it the room for the indices or the run of cells under the mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ollama_engine.errors import ContextOverflowError
from ollama_engine.input import Batch, Int32Array
from ollama_engine.kvcache.base import CellUsage, GraphInputs
from ollama_engine.kvcache.cells import Cells
from ollama_engine.kvcache.config import CacheConfig, LayerShape
from ollama_engine.kvcache.histories import round_up
from ollama_engine.kvcache.move import ShiftKeys
from ollama_engine.kvcache.packing import CellPacker
from ollama_engine.kvcache.paged import suits_paging
from ollama_engine.kvcache.reader import CausalReader
from ollama_engine.kvcache.rotation import rotated
from ollama_engine.kvcache.saving import CellSaver
from ollama_engine.kvcache.shifting import CellShifter
from ollama_engine.kvcache.store import CellIndices, KeyValueStore
from ollama_engine.kvcache.visibility import Visibility
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor


class CausalCache(CausalReader):
    """Keys and values of `layers` for `n_cells` tokens, shared by all sequences.

    `devices` gives the backend's device number for each layer. All layers have one window or chunk (or none); then a
    sequence can be resumed up to `memory` positions back. Without `shift_keys` it is not shiftable. Raises
    NoMemoryError when a device is too small and ConfigError when the type cannot hold the heads.
    """

    def __init__(
        self,
        backend: Backend,
        layers: Sequence[LayerShape],
        devices: Sequence[int],
        n_cells: int,
        config: CacheConfig,
        *,
        memory: int = 0,
        shift_keys: ShiftKeys | None = None,
    ) -> None:
        window, chunk, causal_images = kind = (layers[0].window, layers[0].chunk, layers[0].causal_images)
        if any((layer.window, layer.chunk, layer.causal_images) != kind for layer in layers):
            raise ValueError("all layers of one causal cache have one window or chunk; compose caches for several")
        # -- configuration --
        self.config = config
        self.visibility = Visibility(window=window, chunk=chunk, causal_images=causal_images)
        self.memory = memory
        # -- storage --
        # Before the cell table: the store refuses what does not fit, and nothing has been taken yet.
        n_cells = round_up(n_cells, config.history_padding)
        paged = config.paged and suits_paging(backend, devices, config.dtype)
        store = KeyValueStore(backend, layers, devices, n_cells, config, paged=paged)
        # -- metadata --
        self.cells = Cells(n_cells, window=window, chunk=chunk, memory=memory)
        super().__init__(self.cells, store, self.visibility)
        # -- optional contracts --
        self.shiftable = None if shift_keys is None else CellShifter(self.cells, self._store, shift_keys)
        self.saveable = CellSaver(self.cells, self._store, self.visibility)
        self.recurrent = None
        self.defragmentable = None if paged else CellPacker(self.cells, self._store)
        # -- current batch --
        self._places: Int32Array = np.empty(0, dtype=np.int32)
        self._n_tokens = 0
        # -- current graph --
        self._targets: CellIndices | None = None

    # ** used by models ************************************************************************************************

    def put(self, key: Tensor, value: Tensor) -> None:
        """Store keys [key_dim, kv_heads, n] and values [value_dim, kv_heads, n] of this batch's tokens."""
        assert self._targets is not None
        ctx = self._targets.ctx
        ctx.expand(self._store.write_keys(self._layer, rotated(key, self.rotation), self._targets))
        if not self._store.layers[self._layer].latent:
            ctx.expand(self._store.write_values(self._layer, rotated(value, self.rotation), self._targets))

    # ** used by the executor ******************************************************************************************

    def begin(self, batch: Batch) -> None:
        """Find cells for the batch's tokens. Raises ContextOverflowError, changing nothing, when too few are free."""
        self.require_room(batch)
        if self.visibility.limited:
            self.cells.slide(batch.positions, batch.sequences)
        places = self.cells.find_places(batch.positions, batch.sequences)
        assert places is not None
        self.cells.place(places, batch.positions, batch.sequences)
        self._places = places
        self._n_tokens = len(batch)
        super().begin(batch)

    def roll_back(self, batch: Batch) -> None:
        """Take the batch's tokens out of their cells."""
        for sequence, first in batch.first_positions().items():
            self.cells.remove(sequence, first)

    def worst_cases(self, n_tokens: int) -> Iterator[None]:
        """Prepare in turn for each worst-case graph of `n_tokens` tokens, so that it can be built. Takes no cells."""
        self._n_tokens = n_tokens
        yield from super().worst_cases(n_tokens)

    def build_inputs(self, ctx: Context) -> GraphInputs:
        """Make the input tensors of a new graph: cells for the tokens, and what they see."""
        targets = self._targets = CellIndices(ctx, self._store, self._n_tokens, "i64", "cache_rows")
        seen, write_seen = super().build_inputs(ctx)

        def write() -> None:
            targets.set(self._places)
            write_seen()

        return GraphInputs(seen, write)

    # ** used by the runner ********************************************************************************************

    def reader(self) -> CausalReader:
        """These layers for one executor whose rows store nothing."""
        return CausalReader(self.cells, self._store, self.visibility)

    @property
    def room(self) -> int:
        """Free cells, counting those that no later token sees."""
        return self.cells.room()

    def require_room(self, batch: Batch) -> None:
        if len(batch) <= self.cells.n_free:
            return
        free = self.cells.room_for(batch.positions, batch.sequences)
        if len(batch) > free:
            raise ContextOverflowError(
                f"{len(batch)} tokens do not fit: {free} of {len(self.cells)} cache cells are free"
            )

    def share(self, source: int, target: int, end: int) -> None:
        """Share the cells of `source` below position `end` with `target`, which is empty."""
        self.cells.share(source, target, end)

    def can_resume(self, sequence: int, position: int) -> bool:
        """Whether the cache still holds every earlier position that a token at `position` attends to."""
        return self.cells.has_all(sequence, self.visibility.first_of(position), position)

    def remove(self, sequence: int, begin: int = 0, end: int | None = None) -> None:
        self.cells.remove(sequence, begin, end)

    def scrub(self) -> None:
        """Zero the free cells. For after a step that computed NaN or infinity: a mask does not hide those."""
        self._store.zero(self.cells.positions < 0)

    def check(self) -> None:
        self.cells.check()

    @property
    def usage(self) -> CellUsage:
        """How full the table is. Any thread may ask."""
        used, shared = self.cells.usage()
        return CellUsage(used, len(self.cells) - used, shared)

    @property
    def nbytes(self) -> dict[str, int]:
        return self._store.nbytes

    @property
    def mask_bytes(self) -> int:
        return self._histories.nbytes

    def close(self) -> None:
        self._store.close()
