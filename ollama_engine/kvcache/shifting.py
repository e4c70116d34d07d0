"""Shifts sequences of a causal cache: rotates the keys in place, and copies cells that other sequences share."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ollama_engine.errors import ContextOverflowError
from ollama_engine.kvcache.cells import Cells
from ollama_engine.kvcache.move import Mover, ShiftKeys
from ollama_engine.kvcache.store import KeyValueStore


class CellShifter:
    """Shifts sequences of `cells`, whose keys and values lie in `store`. See `Shiftable`."""

    def __init__(self, cells: Cells, store: KeyValueStore, shift_keys: ShiftKeys) -> None:
        self._cells = cells
        self._mover = Mover(store, shift_keys)

    def require_shift(self, sequence: int, begin: int, discard: int, without: Collection[int] = ()) -> None:
        """Raise ContextOverflowError or ValueError where `shift` would. Changes nothing."""
        require_valid(begin, discard)
        if not self._cells.can_shift(sequence, begin, discard, np.fromiter(without, dtype=np.int32)):
            raise self._too_few(sequence)

    def _too_few(self, sequence: int) -> ContextOverflowError:
        return ContextOverflowError(
            f"sequence {sequence} cannot be shifted: it shares cells, and too few of {len(self._cells)} are free to "
            "copy them"
        )

    def shift(self, sequence: int, begin: int, discard: int) -> None:
        """Forget `discard` positions from `begin` on; later tokens move down. See `Shiftable.shift`."""
        require_valid(begin, discard)
        moves = self._cells.shift_plan(sequence, begin, discard)
        if moves is None:
            raise self._too_few(sequence)
        try:
            self._mover.rotate(moves, -discard)
        except BaseException:
            # Some keys are rotated and some are not.
            self._cells.remove(sequence, begin)
            raise
        self._cells.shift(sequence, begin, discard, moves)

    def reserve(self) -> None:
        """Take the memory for the largest graphs now. Raises NoMemoryError."""
        self._mover.reserve()


def require_valid(begin: int, discard: int) -> None:
    """Raise ValueError for a shift that begins before the first position or discards nothing."""
    if begin < 0 or discard < 1:
        raise ValueError(f"a shift begins at 0 or later and discards 1 or more, got {begin} and {discard}")
