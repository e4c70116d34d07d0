"""Packs the cells of a causal cache: closes the gaps in the run that attention reads. For caches that read a run."""

from __future__ import annotations

import numpy as np

from ollama_engine.input import Int32Array
from ollama_engine.kvcache.cells import Cells
from ollama_engine.kvcache.move import PIECE, Mover
from ollama_engine.kvcache.store import KeyValueStore
from ollama_engine.ml.graph.tensor import Tensor

__all__ = ["AT_ONCE", "CellPacker"]

AT_ONCE = PIECE
"""Most cells that move between two steps: answers wait for it."""

LEAST_RUN = 2 * PIECE
"""Attention over a shorter run costs little, whatever lies in it."""

ROWS_PER_MOVE = 64
"""Moving a cell takes as long as reading a free one for so many rows (docs/performance-history.md)."""


class CellPacker:
    """Packs `cells`, whose keys and values lie in `store`. See `Defragmentable`.

    Cells move down and keep their order, because attention adds up in it. They are all cells of the run, also those of
    sequences that do not run: what lies between two cells of a sequence cannot be left out.
    """

    def __init__(self, cells: Cells, store: KeyValueStore) -> None:
        self._cells = cells
        self._mover = Mover(store, _same)

    def due(self, sequences: Int32Array, rows: int) -> bool:
        """Whether moving pays while these sequences compute `rows` rows more."""
        begin, end = self._cells.span(sequences)
        most = (end - begin + 1) // 2  # of two sequences in turn, one that is left begins and ends its run
        if end - begin < LEAST_RUN or self._cells.n_indices(sequences) > most:
            return False
        used = np.flatnonzero(self._cells.positions[begin:end] >= 0)
        moves = int(np.count_nonzero(used != np.arange(len(used))))
        return len(used) <= most and ROWS_PER_MOVE * moves <= rows * (end - begin - len(used))

    def defrag(self, sequences: Int32Array, rows: int) -> int:
        """Close gaps where that is `due`, by up to `AT_ONCE` moves. Returns how many cells moved."""
        if not self.due(sequences, rows):
            return 0
        begin, end = self._cells.span(sequences)
        moves = self._cells.pack_plan(begin, end, AT_ONCE)
        self._mover.rotate(moves, 0)
        self._cells.pack(begin, end, AT_ONCE)
        return len(moves.sources)

    def reserve(self) -> None:
        """Take the memory for the largest graph now. Raises NoMemoryError."""
        self._mover.reserve()


def _same(layer: int, keys: Tensor, deltas: Tensor) -> Tensor:
    """Keys keep their positions."""
    return keys
