"""Saves sequences of a causal cache, and restores them in the same cache or in another."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ollama_engine.errors import ContextOverflowError
from ollama_engine.kvcache.cells import Cells
from ollama_engine.kvcache.rows import (
    SavedRows,
    Saving,
    empty_rows,
    read_rows,
    reading,
    reserve_rows,
    row_bytes,
    write_rows,
)
from ollama_engine.kvcache.store import KeyValueStore
from ollama_engine.kvcache.visibility import Visibility


class CellSaver:
    """Saves sequences of `cells`, whose keys and values lie in `store`. See `Saveable`."""

    def __init__(self, cells: Cells, store: KeyValueStore, visibility: Visibility) -> None:
        self._cells = cells
        self._store = store
        self._visibility = visibility

    @property
    def row_bytes(self) -> tuple[tuple[int, ...], ...]:
        """Bytes of one token in keys and values of each layer in turn."""
        return (row_bytes(self._store),)

    def first_seen(self, position: int) -> tuple[int, ...]:
        """See `Saveable.first_seen`."""
        return (self._visibility.first_of(position),)

    image_kinds = ()

    def save(self, sequence: int, begin: int = 0, end: int | None = None) -> list[SavedRows]:
        """The keys and values of a sequence."""
        cells, positions = self._cells.of(sequence, begin, end)
        return [SavedRows(positions, read_rows(self._store, cells))]

    def saving(self, sequence: int, begin: int = 0, end: int | None = None) -> Saving:
        """`save`, piece by piece. Begins anew where cells are moved meanwhile; no rows where some were given up."""
        cells, positions = self._cells.of(sequence, begin, end)
        rows, whole = empty_rows(self._store, len(cells)), False
        while not whole:
            whole = True
            for piece in reading(self._store, cells, rows):
                yield piece
                now, left = self._cells.of(sequence, begin, end)
                if not np.array_equal(left, positions):
                    return [SavedRows(positions[:0], empty_rows(self._store, 0))]
                if not np.array_equal(now, cells):
                    cells, whole = now, False
                    break
        return [SavedRows(positions, rows)]

    def require_restore(self, saved: Sequence[SavedRows], without: Collection[int] = ()) -> None:
        """Raise ContextOverflowError where `restore` would. Changes nothing."""
        (kind,) = saved
        n, free = len(kind.positions), self._cells.room(np.fromiter(without, dtype=np.int32))
        if n > free:
            raise ContextOverflowError(f"{n} tokens do not fit: {free} of {len(self._cells)} cache cells are free")

    def restore(self, sequence: int, saved: Sequence[SavedRows]) -> None:
        """Put what `save` returned behind what `sequence` holds. See `Saveable.restore`."""
        self.require_restore(saved)
        (kind,) = saved
        n = len(kind.positions)
        if n > self._cells.n_free:
            self._cells.slide()
        sequences = np.full(n, sequence, dtype=np.int32)
        cells = self._cells.find_places(kind.positions, sequences)
        assert cells is not None
        self._cells.place(cells, kind.positions, sequences)
        try:
            write_rows(self._store, cells, kind.rows)
        except BaseException:
            self._cells.remove(sequence, int(kind.positions[0]))
            raise

    def reserve(self) -> None:
        """Take the memory for the graphs of `save` and `restore` now. Raises NoMemoryError."""
        reserve_rows(self._store)
