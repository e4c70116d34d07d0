"""Causal cache: every token attends to the earlier tokens of its sequence: all, or those of a window or chunk.

Everything that changes from step to step is an input of the graph: the cells that the batch's tokens go to, and what
its rows see, as lists of cells or as a mask. So one graph serves as long as the number of tokens stays the same, and
the room of the lists or the cells that the mask spans.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ollama_engine.errors import ContextOverflowError
from ollama_engine.input import Batch, Int32Array
from ollama_engine.kvcache.base import CellUsage, KVIndices
from ollama_engine.kvcache.cells import Cells, Moves
from ollama_engine.kvcache.config import CacheConfig, LayerShape
from ollama_engine.kvcache.mask import MaskBuffer
from ollama_engine.kvcache.masked import MaskedHistory
from ollama_engine.kvcache.move import Mover, ShiftKeys
from ollama_engine.kvcache.paged import PagedHistory
from ollama_engine.kvcache.rows import SavedRows, read_rows, reserve_rows, row_bytes, write_rows
from ollama_engine.kvcache.store import CellIndices, KeyValueStore
from ollama_engine.kvcache.visibility import Int64Array, Visibility, last_seen
from ollama_engine.ml.backend import Backend
from ollama_engine.ml.context import Context
from ollama_engine.ml.tensor import Tensor


class CausalCache:
    """Keys and values of `layers` for `n_cells` tokens, shared by all sequences.

    `devices` gives the backend's device number for each layer. All layers have one window or chunk (or none); then a
    sequence can be resumed up to `memory` positions back. Without `shift_keys` positions cannot change. Raises
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
        if len({(layer.window, layer.chunk) for layer in layers}) != 1:
            raise ValueError("all layers of one causal cache have one window or chunk; compose caches for several")
        # -- configuration --
        self.config = config
        self.visibility = Visibility(window=layers[0].window, chunk=layers[0].chunk, memory=memory)
        self._limited = layers[0].window is not None or layers[0].chunk is not None
        # -- storage --
        # First, for it refuses what does not fit before the table takes memory.
        n_cells = _round_up(n_cells, config.history_padding)
        self._store = KeyValueStore(backend, layers, devices, n_cells, config)
        self._mover = Mover(self._store, shift_keys)
        self._can_shift = shift_keys is not None
        # -- metadata --
        self.cells = Cells(n_cells)
        # -- current batch --
        self._batch: Batch | None = None
        self._places: Int32Array = np.empty(0, dtype=np.int32)
        self._n_tokens = 0
        # -- what its rows see --
        self._buffer = MaskBuffer()
        self._masked = MaskedHistory(n_cells, config.history_padding, self._buffer)
        self._paged = PagedHistory(n_cells, config.sequences, self._buffer)
        self._paged_rows = config.paged_rows if self._store.suits_lists else 0
        self._history: MaskedHistory | PagedHistory = self._masked
        # -- current graph --
        self._layer = 0
        self._targets: CellIndices | None = None

    # ** used by the runner ********************************************************************************************

    @property
    def room(self) -> int:
        """Free cells, and those that no later token sees."""
        if not self._limited:
            return self.cells.n_free
        return self.cells.n_free_without(self._unseen())

    def require_room(self, batch: Batch) -> None:
        """Raise ContextOverflowError where `begin` would. Changes nothing."""
        if len(batch) <= self.cells.n_free:
            return
        free = self.cells.n_free_without(self._unseen(batch)) if self._limited else self.cells.n_free
        if len(batch) > free:
            raise ContextOverflowError(
                f"{len(batch)} tokens do not fit: {free} of {len(self.cells)} cache cells are free"
            )

    def begin(self, batch: Batch) -> None:
        """Find cells for the batch's tokens. Raises ContextOverflowError, changing nothing, when too few are free."""
        self.require_room(batch)
        if self._limited:
            self.cells.remove_below(self._unseen(batch))
        places = self.cells.find_places(batch.positions, batch.sequences)
        assert places is not None
        self.cells.place(places, batch.positions, batch.sequences)
        self._batch = batch
        self._places = places
        self._n_tokens = len(batch)
        self._history = self._history_for(len(batch))
        self._history.begin(self.cells, batch)

    def _history_for(self, n_tokens: int) -> MaskedHistory | PagedHistory:
        return self._paged if n_tokens <= self._paged_rows else self._masked

    def _unseen(self, batch: Batch | None = None) -> Int64Array:
        """int64 [64]: what of each sequence lies before is seen by no row of this batch, nor by any later one."""
        if batch is None:
            return self.visibility.kept_from(self.cells.next_positions())
        return self.visibility.kept_from(self.cells.next_positions(batch.positions, batch.sequences))

    def begin_reserve(self, n_tokens: int) -> None:
        """Prepare for building a worst-case graph: as many tokens, the whole history, no cells taken."""
        self._batch = None
        self._n_tokens = n_tokens
        self._history = self._history_for(n_tokens)
        self._history.begin_reserve(n_tokens)

    @property
    def shape_key(self) -> tuple[int, ...]:
        """Number of tokens, and the room of their lists, or the cells that their mask spans."""
        return self._history.shape_key

    def build_inputs(self, ctx: Context) -> None:
        """Make the input tensors of a new graph: cells for the tokens, and what they see."""
        self._targets = CellIndices(ctx, self._store, self._n_tokens, "i64", "cache_rows")
        self._history.build_inputs(ctx)

    def write_inputs(self) -> None:
        """Write the current batch's cells, and what it sees, into the inputs of the latest graph."""
        batch = self._batch
        assert batch is not None
        assert self._targets is not None
        self._targets.set(self._places)
        first = self.visibility.first(batch.positions)
        self._history.write_inputs(self.cells, batch.sequences, first, last_seen(batch))

    def share(self, source: int, target: int, end: int) -> None:
        """Let `target`, which is empty, have the cells of `source` below position `end`."""
        self.cells.share(source, target, end)

    def can_resume(self, sequence: int, position: int) -> bool:
        """Whether all is there that a token at `position` attends to, of the positions before it."""
        return self.cells.has_all(sequence, self.visibility.first_of(position), position)

    def remove(self, sequence: int, begin: int = 0, end: int | None = None) -> None:
        """Forget tokens of a sequence, from position `begin` to before `end`."""
        self.cells.remove(sequence, begin, end)

    @property
    def can_shift(self) -> bool:
        """Whether the model said how to turn keys to other positions."""
        return self._can_shift

    def require_shift(self, sequence: int, begin: int, discard: int, without: Collection[int] = ()) -> None:
        """Raise ContextOverflowError or ValueError where `shift` would. Changes nothing."""
        self._shift_plan(sequence, begin, discard, without)

    def shift(self, sequence: int, begin: int, discard: int) -> None:
        """Forget `discard` positions from `begin` on; those that follow move down by as many. See `Cache.shift`."""
        moves = self._shift_plan(sequence, begin, discard)
        try:
            self._mover.rotate(moves, -discard)
        except BaseException:
            # Some keys have turned and some have not.
            self.remove(sequence, begin)
            raise
        self.cells.shift(sequence, begin, discard, moves)

    def _shift_plan(self, sequence: int, begin: int, discard: int, without: Collection[int] = ()) -> Moves:
        if not self._can_shift:
            raise ValueError("the keys of this model cannot be turned to other positions; compute the tokens again")
        if begin < 0 or discard < 1:
            raise ValueError(f"a shift begins at 0 or later and discards 1 or more, got {begin} and {discard}")
        cells = self.cells
        if without:
            gone = np.uint64(sum(1 << other for other in without))
            cells = Cells.from_table(cells.positions, cells.owners & ~gone)
        moves = cells.shift_plan(sequence, begin, discard)
        if moves is None:
            raise ContextOverflowError(
                f"sequence {sequence} cannot be shifted: it shares cells, and too few of {len(self.cells)} are free "
                "to copy them"
            )
        return moves

    def defrag(self) -> int:
        """Move used cells into the holes below them; returns how many were moved."""
        moves = self.cells.defrag_plan()
        for piece in self._mover.copy(moves):
            self.cells.move(piece)
        return len(moves.sources)

    def reserve_moves(self) -> None:
        """Take the memory for moving, saving and restoring now. Raises NoMemoryError."""
        self._mover.reserve()
        reserve_rows(self._store)

    @property
    def row_bytes(self) -> tuple[tuple[int, ...], ...]:
        """Bytes of one token in keys and values of each layer in turn."""
        return (row_bytes(self._store),)

    def save(self, sequence: int) -> list[SavedRows]:
        """What a sequence has. Graphs that were allocated lose their memory."""
        cells = self._cells_of(sequence)
        return [SavedRows(self.cells.positions[cells], read_rows(self._store, cells))]

    def _cells_of(self, sequence: int) -> Int32Array:
        """The cells of a sequence, by position."""
        mine = np.flatnonzero(self.cells.owners & (np.uint64(1) << np.uint64(sequence)))
        return mine[np.argsort(self.cells.positions[mine])].astype(np.int32)

    def require_restore(self, saved: Sequence[SavedRows], without: Collection[int] = ()) -> None:
        """Raise ContextOverflowError where `restore` would. Changes nothing."""
        (part,) = saved
        ends = self._unseen()
        ends[list(without)] = np.iinfo(np.int64).max
        n, free = len(part.positions), self.cells.n_free_without(ends)
        if n > free:
            raise ContextOverflowError(f"{n} tokens do not fit: {free} of {len(self.cells)} cache cells are free")

    def restore(self, sequence: int, saved: Sequence[SavedRows]) -> None:
        """Give `sequence`, which is empty, what `save` gave. See `Cache.restore`."""
        self.require_restore(saved)
        (part,) = saved
        n = len(part.positions)
        if n > self.cells.n_free:
            self.cells.remove_below(self._unseen())
        sequences = np.full(n, sequence, dtype=np.int32)
        cells = self.cells.find_places(part.positions, sequences)
        assert cells is not None
        self.cells.place(cells, part.positions, sequences)
        try:
            write_rows(self._store, cells, part.rows)
        except BaseException:
            self.remove(sequence)
            raise

    def scrub(self) -> None:
        """Zero the free cells. For after a step that computed NaN or infinity: a mask does not hide those."""
        self._store.zero(self.cells.owners == 0)

    def check(self) -> None:
        """Raise AssertionError unless the table is consistent."""
        self.cells.check()

    @property
    def usage(self) -> CellUsage:
        """How full the table is."""
        used, shared, extent = self.cells.usage_without(self._unseen())
        return CellUsage(used, len(self.cells) - used, shared, extent)

    @property
    def nbytes(self) -> dict[str, int]:
        """Memory taken, {device name: bytes}."""
        return self._store.nbytes

    @property
    def mask_bytes(self) -> int:
        """Memory of the process in which masks and lists are made."""
        return self._buffer.nbytes

    def close(self) -> None:
        """Free the memory."""
        self._store.close()

    # ** used by models ************************************************************************************************

    @property
    def flash_attention(self) -> bool:
        """Whether values come as flash attention reads them, or permuted for two products."""
        return self.config.flash_attention

    def set_layer(self, layer: int) -> None:
        """Choose the layer that `put` and `get` speak of."""
        self._layer = layer

    def put(self, key: Tensor, value: Tensor) -> None:
        """Store keys [key_dim, kv_heads, n] and values [value_dim, kv_heads, n] of this batch's tokens."""
        assert self._targets is not None
        ctx = self._targets.ctx
        ctx.expand(self._store.write_keys(self._layer, key, self._targets))
        ctx.expand(self._store.write_values(self._layer, value, self._targets))

    def get(self) -> tuple[Tensor, Tensor, Tensor | KVIndices]:
        """Keys [key_dim, history, kv_heads], values, and what the rows see of this layer: a mask, or lists."""
        assert self._targets is not None
        return self._history.get(self._store, self._layer, self._targets.ctx)


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
