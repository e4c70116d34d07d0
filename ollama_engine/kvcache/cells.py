"""The cell table: which token's keys and values lie in which row of the cache. Numbers only, no tensor in sight.

A cell knows its position and the set of sequences that share it, one bit each. This is the numpy form; it is also
the twin that a faster one is held against.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ollama_engine.input import Int32Array

Bools = npt.NDArray[np.bool_]

MAX_SEQUENCES = 64
FREE = -1


class Moves(NamedTuple):
    """Cells whose contents go to other cells; a cell may also be its own target. No target is another's source."""

    sources: Int32Array
    targets: Int32Array


class Cells:
    """`n_cells` cells, all free at first."""

    def __init__(self, n_cells: int) -> None:
        if n_cells < 1:
            raise ValueError(f"a cache has at least one cell, got {n_cells}")
        # -- metadata: one entry for each cell --
        self.positions: Int32Array = np.full(n_cells, FREE, dtype=np.int32)
        self.owners: npt.NDArray[np.uint64] = np.zeros(n_cells, dtype=np.uint64)
        # -- derived --
        self._n_used = 0

    # -- what is there -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def n_used(self) -> int:
        """Cells that hold a token of some sequence."""
        return self._n_used

    @property
    def n_free(self) -> int:
        return len(self.positions) - self._n_used

    def n_free_without(self, drops: Iterable[tuple[int, int]]) -> int:
        """Free cells there would be if each (sequence, end) gave up its positions below `end`. Changes nothing."""
        return int((self._owners_without(drops) == 0).sum())

    def usage_without(self, drops: Iterable[tuple[int, int]]) -> tuple[int, int, int]:
        """(used cells, those of them with two sequences or more, extent) there would be. Changes nothing."""
        owners = self._owners_without(drops)
        used = np.flatnonzero(owners)
        return len(used), int(_shared(owners).sum()), int(used[-1]) + 1 if len(used) else 0

    def _owners_without(self, drops: Iterable[tuple[int, int]]) -> npt.NDArray[np.uint64]:
        owners = self.owners.copy()
        for sequence, end in drops:
            owners[self._of(sequence) & (self.positions < end)] &= ~_bit(sequence)
        return owners

    def extent(self) -> int:
        """One more than the highest used cell: how far attention must look."""
        used = np.flatnonzero(self.owners)
        return int(used[-1]) + 1 if len(used) else 0

    def find_free(self, n: int) -> Int32Array | None:
        """The `n` lowest free cells in ascending order, or None when there are fewer. Changes nothing."""
        if n > self.n_free:
            return None
        return np.flatnonzero(self.owners == 0)[:n].astype(np.int32)

    def last_position(self, sequence: int) -> int:
        """The highest position of a sequence, -1 when it has none."""
        chosen = self._of(sequence)
        return int(self.positions[chosen].max()) if chosen.any() else -1

    def has_all(self, sequence: int, begin: int, end: int) -> bool:
        """Whether every position from `begin` to before `end` of a sequence is there."""
        mine = self._of(sequence) & (self.positions >= begin) & (self.positions < end)
        return int(mine.sum()) == max(0, end - begin)

    def visible(self, extent: int, sequences: Int32Array, first: Int32Array, last: Int32Array) -> Bools:
        """bool [rows, extent]: the cells below `extent` that each row attends to.

        A row sees its own sequence's cells with positions from its `first` to its `last`, both included.
        """
        keys = self.positions[:extent][None, :]
        seen: Bools = (self.owners[:extent][None, :] & _bits(sequences)[:, None]) != 0
        seen &= keys <= last[:, None]
        if (first > 0).any():
            seen &= keys >= first[:, None]
        return seen

    def check(self) -> None:
        """Raise AssertionError unless the table is consistent; for tests and debugging."""
        used = self.owners != 0
        assert self._n_used == int(used.sum()), "count of used cells"
        assert (self.positions[used] >= 0).all(), "used cells have positions"
        assert (self.positions[~used] == FREE).all(), "free cells have none"
        for sequence in range(MAX_SEQUENCES):
            mine = np.sort(self.positions[self._of(sequence)])
            assert (np.diff(mine) > 0).all(), f"sequence {sequence} has each position once"

    # -- changes -------------------------------------------------------------------------------------------------------

    def place(self, cells: Int32Array, positions: Int32Array, sequences: Int32Array) -> None:
        """Give free cells a position and one sequence each."""
        self.positions[cells] = positions
        self.owners[cells] = _bits(sequences)
        self._n_used += len(cells)

    def share(self, source: int, target: int, end: int) -> int:
        """Let `target`, which has no cells, share those of `source` with positions below `end`; returns how many."""
        if self._of(target).any():
            raise ValueError(f"sequence {target} has tokens; remove them before it shares those of another")
        chosen = self._of(source) & (self.positions < end)
        self.owners[chosen] |= _bit(target)
        return int(chosen.sum())

    def remove(self, sequence: int, begin: int = 0, end: int | None = None) -> int:
        """Take `sequence` out of its cells with begin <= position < end; cells without sequences become free."""
        chosen = self._of(sequence) & (self.positions >= begin)
        if end is not None:
            chosen &= self.positions < end
        self.owners[chosen] &= ~_bit(sequence)
        freed = chosen & (self.owners == 0)
        self.positions[freed] = FREE
        self._n_used -= int(freed.sum())
        return int(chosen.sum())

    def remove_below(self, drops: Sequence[tuple[int, int]]) -> None:
        """Take each (sequence, end) out of its cells with positions below `end`."""
        if not drops:
            return
        low = np.flatnonzero((self.owners != 0) & (self.positions < max(end for _, end in drops)))
        owners, positions = self.owners[low], self.positions[low]
        for sequence, end in drops if len(low) else ():
            owners[positions < end] &= ~_bit(sequence)
        self.owners[low] = owners
        freed = low[owners == 0]
        self.positions[freed] = FREE
        self._n_used -= len(freed)

    # -- moving --------------------------------------------------------------------------------------------------------

    def shift_plan(self, sequence: int, begin: int, discard: int) -> Moves | None:
        """Where the keys go when a sequence loses `discard` positions from `begin` on and what follows moves down.

        Cells of this sequence alone stay in place, those that others share go to cells that are free by then. None
        when there are too few of these. Changes nothing.
        """
        mine, alone = self._of(sequence), ~_shared(self.owners)
        after = mine & (self.positions >= begin + discard)
        leaving = mine & (self.positions >= begin) & ~after
        in_place, copied = np.flatnonzero(after & alone), np.flatnonzero(after & ~alone)
        free = np.flatnonzero((self.owners == 0) | (leaving & alone))[: len(copied)]
        if len(free) < len(copied):
            return None
        sources, targets = np.concatenate([in_place, copied]), np.concatenate([in_place, free])
        return Moves(sources.astype(np.int32), targets.astype(np.int32))

    def shift(self, sequence: int, begin: int, discard: int, moves: Moves) -> None:
        """Carry out a shift that `shift_plan` gave."""
        positions = self.positions[moves.sources] - np.int32(discard)
        self.remove(sequence, begin)
        self.positions[moves.targets] = positions
        self.owners[moves.targets] = _bit(sequence)
        self._n_used += len(moves.targets)

    def defrag_plan(self) -> Moves:
        """The fewest moves that leave no hole below a used cell: the highest used ones into the lowest holes."""
        used = self.owners != 0
        holes = np.flatnonzero(~used[: self._n_used])
        highest = np.flatnonzero(used[self._n_used :])[::-1] + self._n_used
        return Moves(highest.astype(np.int32), holes.astype(np.int32))

    def move(self, moves: Moves) -> None:
        """Give the targets, which are free, what the sources have; the sources become free."""
        sources, targets = moves
        self.positions[targets], self.owners[targets] = self.positions[sources], self.owners[sources]
        self.positions[sources], self.owners[sources] = FREE, 0

    def _of(self, sequence: int) -> Bools:
        mine: Bools = (self.owners & _bit(sequence)) != 0
        return mine


def _shared(owners: npt.NDArray[np.uint64]) -> Bools:
    # A set with one bit less is empty unless it had two.
    shared: Bools = (owners & (owners - np.uint64(1))) != 0
    return shared


def _bit(sequence: int) -> np.uint64:
    if not 0 <= sequence < MAX_SEQUENCES:
        raise ValueError(f"sequences are 0 to {MAX_SEQUENCES - 1}, got {sequence}")
    return np.uint64(1) << np.uint64(sequence)


def _bits(sequences: Int32Array) -> npt.NDArray[np.uint64]:
    return np.left_shift(np.uint64(1), sequences.astype(np.uint64))
