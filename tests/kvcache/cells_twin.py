"""The cell table in numpy: the twin that the one in C is held against. No derived state but where sequences go on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ollama_engine.input import Int32Array
from ollama_engine.kvcache.cells import MAX_SEQUENCES, Moves

Bools = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]

FREE = -1


class CellsTwin:
    """As `Cells`."""

    def __init__(self, n_cells: int) -> None:
        self.positions: Int32Array = np.full(n_cells, FREE, dtype=np.int32)
        self.owners: npt.NDArray[np.uint64] = np.zeros(n_cells, dtype=np.uint64)
        self.next: npt.NDArray[np.int64] = np.zeros(MAX_SEQUENCES, dtype=np.int64)

    # -- what is there -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def n_used(self) -> int:
        return int((self.owners != 0).sum())

    @property
    def n_free(self) -> int:
        return len(self) - self.n_used

    def n_free_without(self, ends: Int64Array) -> int:
        return int((self._owners_without(ends) == 0).sum())

    def usage_without(self, ends: Int64Array) -> tuple[int, int, int]:
        owners = self._owners_without(ends)
        return int((owners != 0).sum()), int(_shared(owners).sum()), _extent(owners)

    def _owners_without(self, ends: Int64Array) -> npt.NDArray[np.uint64]:
        owners = self.owners.copy()
        for sequence in np.flatnonzero(ends > 0).tolist():
            owners[self._of(sequence) & (self.positions < ends[sequence])] &= ~_bit(sequence)
        return owners

    def extent(self) -> int:
        return _extent(self.owners)

    def span(self, sequences: Int32Array) -> tuple[int, int]:
        mine = np.flatnonzero(self.owners & np.bitwise_or.reduce(_bits(sequences), initial=np.uint64(0)))
        return (int(mine[0]), int(mine[-1]) + 1) if len(mine) else (0, 0)

    def next_positions(self, positions: Int32Array, sequences: Int32Array) -> Int64Array:
        out = self.next.copy()
        out[sequences] = np.iinfo(np.int64).max
        np.minimum.at(out, sequences, positions)
        return out

    def find_places(self, positions: Int32Array, sequences: Int32Array) -> Int32Array | None:
        """Token by token, each sequence's in the order of positions."""
        if len(positions) > self.n_free:
            return None
        free = self.owners == 0
        above = {s: int(np.flatnonzero(self._of(s))[-1]) + 1 if self._of(s).any() else 0 for s in range(MAX_SEQUENCES)}
        rows = np.arange(len(positions))
        in_order = all((np.diff(positions[sequences == s]) > 0).all() for s in range(MAX_SEQUENCES))
        found = np.empty(len(positions), dtype=np.int32)
        for row in rows if in_order else np.lexsort((positions, sequences)):
            sequence = int(sequences[row])
            behind = np.flatnonzero(free[above[sequence] :])
            cell = above[sequence] + int(behind[0]) if len(behind) else int(np.flatnonzero(free)[0])
            above[sequence] = max(above[sequence], cell + 1)
            free[cell] = False
            found[row] = cell
        return found

    def last_position(self, sequence: int) -> int:
        chosen = self._of(sequence)
        return int(self.positions[chosen].max()) if chosen.any() else -1

    def has_all(self, sequence: int, begin: int, end: int) -> bool:
        mine = self._of(sequence) & (self.positions >= begin) & (self.positions < end)
        return int(mine.sum()) == max(0, end - begin)

    def visible(self, begin: int, end: int, sequences: Int32Array, first: Int32Array, last: Int32Array) -> Bools:
        """bool [rows, end - begin]: the cells that each row attends to."""
        keys = self.positions[begin:end][None, :]
        seen: Bools = (self.owners[begin:end][None, :] & _bits(sequences)[:, None]) != 0
        seen &= keys <= last[:, None]
        if (first > 0).any():
            seen &= keys >= first[:, None]
        return seen

    # -- changes -------------------------------------------------------------------------------------------------------

    def place(self, cells: Int32Array, positions: Int32Array, sequences: Int32Array) -> None:
        self.positions[cells] = positions
        self.owners[cells] = _bits(sequences)
        for sequence in set(sequences.tolist()):
            self._settle(sequence)

    def share(self, source: int, target: int, end: int) -> int:
        if self._of(target).any():
            raise ValueError(f"sequence {target} has tokens; remove them before it shares those of another")
        chosen = self._of(source) & (self.positions < end)
        self.owners[chosen] |= _bit(target)
        self._settle(target)
        return int(chosen.sum())

    def remove(self, sequence: int, begin: int = 0, end: int | None = None) -> int:
        chosen = self._of(sequence) & (self.positions >= begin)
        if end is not None:
            chosen &= self.positions < end
        self.owners[chosen] &= ~_bit(sequence)
        self.positions[self.owners == 0] = FREE
        self._settle(sequence)
        return int(chosen.sum())

    def remove_below(self, ends: Int64Array) -> None:
        self.owners = self._owners_without(ends)
        self.positions[self.owners == 0] = FREE

    def _settle(self, sequence: int) -> None:
        self.next[sequence] = self.last_position(sequence) + 1

    # -- moving --------------------------------------------------------------------------------------------------------

    def shift_plan(self, sequence: int, begin: int, discard: int) -> Moves | None:
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
        positions = self.positions[moves.sources] - np.int32(discard)
        self.remove(sequence, begin)
        self.positions[moves.targets] = positions
        self.owners[moves.targets] = _bit(sequence)
        self._settle(sequence)

    def defrag_plan(self) -> Moves:
        used = self.owners != 0
        holes = np.flatnonzero(~used[: self.n_used])
        highest = np.flatnonzero(used[self.n_used :])[::-1] + self.n_used
        return Moves(highest.astype(np.int32), holes.astype(np.int32))

    def move(self, moves: Moves) -> None:
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


def _extent(owners: npt.NDArray[np.uint64]) -> int:
    used = np.flatnonzero(owners)
    return int(used[-1]) + 1 if len(used) else 0


def _bit(sequence: int) -> np.uint64:
    return np.uint64(1) << np.uint64(sequence)


def _bits(sequences: Int32Array) -> npt.NDArray[np.uint64]:
    return np.left_shift(np.uint64(1), sequences.astype(np.uint64))
