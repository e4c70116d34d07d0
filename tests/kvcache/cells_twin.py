"""The cell table in numpy: the twin that the one in C is held against. No derived state but where sequences go on."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ollama_engine.input import Int32Array
from ollama_engine.kvcache.cells import Moves

Bools = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]

FREE = -1
NOTHING = np.empty(0, dtype=np.int32)


def kept_from(position: int, window: int | None, chunk: int | None, memory: int) -> int:
    """The lowest position to keep of a sequence whose next token comes at `position`."""
    back = max(position - memory, 0)
    if window is not None:
        return max(back - window + 1, 0)
    return back - back % chunk if chunk is not None else 0


class CellsTwin:
    """The numpy twin of `Cells`: the same methods, results and errors."""

    def __init__(self, n_cells: int, *, window: int | None = None, chunk: int | None = None, memory: int = 0) -> None:
        self._reach = window, chunk, memory
        self.positions: Int32Array = np.full(n_cells, FREE, dtype=np.int32)
        self.owners: Bools = np.zeros((0, n_cells), dtype=np.bool_)
        """[sequences, cells]"""
        self.next: Int64Array = np.zeros(0, dtype=np.int64)
        """Where each sequence goes on."""

    # -- what is there -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def n_free(self) -> int:
        return int((~self.owners.any(axis=0)).sum())

    def of(self, sequence: int, begin: int = 0, end: int | None = None) -> tuple[Int32Array, Int32Array]:
        last = 2**31 if end is None else end
        mine = np.flatnonzero(self._of(sequence) & (self.positions >= begin) & (self.positions < last))
        mine = mine[np.argsort(self.positions[mine])]
        return mine.astype(np.int32), self.positions[mine]

    def room(self, without: Int32Array = NOTHING) -> int:
        owners = self._owners_after(NOTHING, NOTHING)
        for sequence in without.tolist():
            self._of(sequence)
            owners[sequence : sequence + 1] = False
        return int((~owners.any(axis=0)).sum())

    def room_for(self, positions: Int32Array, sequences: Int32Array) -> int:
        return int((~self._owners_after(positions, sequences).any(axis=0)).sum())

    def usage(self) -> tuple[int, int]:
        owners = self._owners_after(NOTHING, NOTHING).sum(axis=0)
        return int((owners > 0).sum()), int((owners > 1).sum())

    def _owners_after(self, positions: Int32Array, sequences: Int32Array) -> Bools:
        """The owners of each cell after `slide`."""
        for sequence in sequences.tolist():
            self._of(sequence)
        comes = self.next.copy()
        comes[sequences] = np.iinfo(np.int64).max
        np.minimum.at(comes, sequences, positions)
        kept = np.array([kept_from(int(p), *self._reach) for p in comes], dtype=np.int64)
        left: Bools = self.owners & (self.positions >= kept[:, None])
        return left

    def span(self, sequences: Int32Array) -> tuple[int, int]:
        mine = np.flatnonzero(np.any([self._of(s) for s in sequences.tolist()], axis=0)) if len(sequences) else NOTHING
        return (int(mine[0]), int(mine[-1]) + 1) if len(mine) else (0, 0)

    def has_all(self, sequence: int, begin: int, end: int) -> bool:
        mine = self._of(sequence) & (self.positions >= begin) & (self.positions < end)
        return int(mine.sum()) == max(0, end - begin)

    def visible(self, begin: int, end: int, sequences: Int32Array, first: Int32Array, last: Int32Array) -> Bools:
        """bool [rows, end - begin]: the cells that each row attends to."""
        mine = np.stack([self._of(s)[begin:end] for s in sequences.tolist()])
        keys = self.positions[begin:end][None, :]
        seen: Bools = mine & (keys <= last[:, None])
        if (first > 0).any():
            seen &= keys >= first[:, None]
        return seen

    # -- one step ------------------------------------------------------------------------------------------------------

    def slide(self, positions: Int32Array = NOTHING, sequences: Int32Array = NOTHING) -> None:
        self.owners = self._owners_after(positions, sequences)
        self._settle_free()

    def find_places(self, positions: Int32Array, sequences: Int32Array) -> Int32Array | None:
        """Token by token, each sequence's in the order of positions."""
        if len(positions) > self.n_free:
            return None
        free = ~self.owners.any(axis=0)
        behind = {s: int(self.of(s)[0][-1]) + 1 if self._of(s).any() else 0 for s in set(sequences.tolist())}
        rows = np.arange(len(positions))
        in_order = all((np.diff(positions[sequences == s]) > 0).all() for s in behind)
        places = np.empty(len(positions), dtype=np.int32)
        for row in rows if in_order else np.lexsort((positions, sequences)):
            sequence = int(sequences[row])
            cells = np.flatnonzero(free)
            above = cells[cells >= behind[sequence]]
            cell = int(above[0] if len(above) else cells[0])
            behind[sequence] = cell + 1
            free[cell] = False
            places[row] = cell
        return places

    def place(self, cells: Int32Array, positions: Int32Array, sequences: Int32Array) -> None:
        for sequence in set(sequences.tolist()):
            self._of(sequence)
        self.positions[cells] = positions
        self.owners[sequences, cells] = True
        for sequence in set(sequences.tolist()):
            self._settle(sequence)

    # -- one sequence --------------------------------------------------------------------------------------------------

    def share(self, source: int, target: int, end: int) -> int:
        chosen = self._of(source) & (self.positions < end)
        if self._of(target).any():
            raise ValueError(f"sequence {target} has tokens; remove them before it shares those of another")
        self.owners[target] |= chosen
        self._settle(target)
        return int(chosen.sum())

    def remove(self, sequence: int, begin: int = 0, end: int | None = None) -> int:
        chosen = self._of(sequence) & (self.positions >= begin)
        if end is not None:
            chosen &= self.positions < end
        self.owners[sequence] &= ~chosen
        self._settle_free()
        self._settle(sequence)
        return int(chosen.sum())

    def can_shift(self, sequence: int, begin: int, discard: int, without: Int32Array = NOTHING) -> bool:
        for gone in without.tolist():
            self._of(gone)
        left: Any = CellsTwin(len(self))
        left.positions, left.owners, left.next = self.positions.copy(), self.owners.copy(), self.next.copy()
        for gone in without.tolist():
            left.owners[gone] = False
        left._settle_free()
        return left.shift_plan(sequence, begin, discard) is not None

    def shift_plan(self, sequence: int, begin: int, discard: int) -> Moves | None:
        mine, positions = self.of(sequence)
        shared, n_owners = self.owners.sum(axis=0) > 1, self.owners.sum(axis=0)
        leaving = mine[(positions >= begin) & (positions < begin + discard)]
        sources = mine[positions >= begin + discard]
        free = n_owners == 0
        free[leaving[~shared[leaving]]] = True
        room, copied = np.flatnonzero(free), shared[sources]
        if len(room) < copied.sum():
            return None
        targets = sources.copy()
        targets[copied] = room[: copied.sum()]
        return Moves(sources, targets)

    def shift(self, sequence: int, begin: int, discard: int, moves: Moves) -> None:
        positions = self.positions[moves.sources] - np.int32(discard)
        self.remove(sequence, begin)
        self.positions[moves.targets] = positions
        self.owners[sequence, moves.targets] = True
        self._settle(sequence)

    def pack_plan(self, begin: int, end: int, most: int) -> Moves:
        used = begin + np.flatnonzero(self.owners.any(axis=0)[begin:end])
        targets = begin + np.arange(len(used))
        moves = used != targets
        return Moves(used[moves][:most].astype(np.int32), targets[moves][:most].astype(np.int32))

    def pack(self, begin: int, end: int, most: int) -> None:
        for source, target in zip(*self.pack_plan(begin, end, most), strict=True):
            self.positions[target], self.positions[source] = self.positions[source], -1
            self.owners[:, target], self.owners[:, source] = self.owners[:, source].copy(), False

    # -- inside --------------------------------------------------------------------------------------------------------

    def _of(self, sequence: int) -> Bools:
        missing = sequence + 1 - len(self.owners)
        if missing > 0:
            self.owners = np.concatenate([self.owners, np.zeros((missing, len(self)), dtype=np.bool_)])
            self.next = np.concatenate([self.next, np.zeros(missing, dtype=np.int64)])
        mine: Bools = self.owners[sequence]
        return mine

    def _settle(self, sequence: int) -> None:
        mine = self._of(sequence)
        self.next[sequence] = self.positions[mine].max(initial=-1) + 1

    def _settle_free(self) -> None:
        self.positions[~self.owners.any(axis=0)] = FREE
