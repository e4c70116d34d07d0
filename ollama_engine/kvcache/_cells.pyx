"""Cells: owns a cell table of csrc/kvcache/cells.c and checks all arguments before they reach C."""

import numpy as np

from cython cimport critical_section, final
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint16_t
from libc.string cimport memcpy

from ollama_engine.kvcache cimport libcells as lib
from ollama_engine.kvcache._cell_arrays cimport (
    bound_of, check_range, checked_begin, checked_discard, checked_ints, checked_mask, checked_positions, checked_rows,
    described, limit_of, mask_start, room_of, rows_start, start_of,
)

from ollama_engine.errors import NoMemoryError, ShapeError
from ollama_engine.kvcache.moves import Moves

__all__ = ["MAX_CELLS", "MAX_SEQUENCES", "Cells", "fill_range_mask"]

MAX_CELLS = lib.OE_CELLS_MAX
MAX_SEQUENCES = lib.OE_SEQUENCES_MAX

cdef object _NOTHING = np.empty(0, dtype=np.int32)


@final
cdef class Cells:
    """A table of `n_cells` cells (up to 16 Mi), all free at first, for sequences 0 to MAX_SEQUENCES - 1.

    The table's memory grows with the highest sequence number used and with the cells that sequences hold. `window`,
    `chunk` and `memory` are those of `Visibility`: a cell that no later token sees is freed when a token needs it.

    Arrays of cells, positions and sequences are contiguous int32. Every method either succeeds or raises and changes
    nothing: ShapeError for a wrong array, ValueError for a number out of range, NoMemoryError where the table cannot
    grow. Threads take turns; while a call has released the GIL, others may ask for `usage` only.

    Raises ValueError for an n_cells or a limit out of range, and NoMemoryError.
    """

    cdef lib.oe_cells *_cells

    def __cinit__(self, n_cells, *, window=None, chunk=None, memory=0):
        if not 1 <= n_cells <= MAX_CELLS:
            raise ValueError(f"a cache has at least one cell and at most {MAX_CELLS}, got {n_cells}")
        cdef lib.oe_reach reach = lib.oe_reach(limit_of("window", window), limit_of("chunk", chunk), 0)
        if memory < 0:
            raise ValueError(f"memory is at least 0, got {memory}")
        reach.memory = min(memory, 1 << 32)
        self._cells = lib.oe_cells_create(n_cells, reach)
        if self._cells is NULL:
            raise NoMemoryError(f"no memory for a table of {n_cells} cells")

    def __dealloc__(self):
        lib.oe_cells_destroy(self._cells)

    # -- queries -------------------------------------------------------------------------------------------------------

    def __len__(self):
        return self._cells.n

    @property
    @critical_section
    def positions(self):
        """The position in each cell, int32 [n_cells], -1 for a free cell. A copy."""
        cdef int32_t[::1] out = np.empty(self._cells.n, dtype=np.int32)
        memcpy(&out[0], self._cells.position, self._cells.n * sizeof(int32_t))
        return out.base

    @critical_section
    def of(self, sequence, begin=0, end=None):
        """The cells of a sequence at positions [begin, end), and these positions, ascending: two int32 arrays of equal
        length.
        """
        cdef lib.oe_sequence *s = &self._cells.sequence[self._sequence(sequence)]
        cdef int32_t first = lib.oe_index(self._cells, s, bound_of(begin)), i
        cdef int32_t n = max(0, (s.end if end is None else lib.oe_index(self._cells, s, bound_of(end))) - first)
        cdef int32_t[::1] cells = np.empty(n, dtype=np.int32), positions = np.empty(n, dtype=np.int32)
        for i in range(n):
            cells[i] = s.cell[first + i]
            positions[i] = self._cells.position[cells[i]]
        return cells.base, positions.base

    @property
    @critical_section
    def n_free(self):
        """Cells that hold no token."""
        return self._cells.n - self._cells.n_used

    @critical_section
    def room(self, without=_NOTHING):
        """Cells that can become free: free ones, cells that no later token sees, and cells of only these sequences."""
        cdef const int32_t[::1] given = self._sequences(without)
        return lib.oe_cells_room(self._cells, start_of(given), given.shape[0])

    @critical_section
    def room_for(self, positions, sequences):
        """Number of free cells after a `slide` with these arguments. Changes nothing."""
        cdef const int32_t[::1] places = checked_positions(positions)
        cdef const int32_t[::1] given = self._sequences(sequences, places.shape[0])
        return lib.oe_cells_room_for(self._cells, start_of(places), start_of(given), places.shape[0])

    @critical_section
    def usage(self):
        """(cells that some later token sees, how many of them two sequences or more share)."""
        cdef lib.oe_cells_held held = lib.oe_cells_usage(self._cells)
        return held.used, held.shared

    @critical_section
    def span(self, sequences):
        """The range [begin, end) that holds every cell of these sequences; (0, 0) where they have none."""
        cdef const int32_t[::1] given = self._sequences(sequences)
        cdef int32_t begin = 0, end = 0
        lib.oe_cells_span(self._cells, start_of(given), given.shape[0], &begin, &end)
        return begin, end

    @critical_section
    def has_all(self, sequence, begin, end):
        """Whether the table holds every position of a sequence in [begin, end)."""
        return lib.oe_cells_has_all(self._cells, self._sequence(sequence), bound_of(begin), bound_of(end))

    @critical_section
    def fill_mask(self, begin, sequences, first, last, mask):
        """Write an attention mask, float16 [rows, n]: 0 for a cell that the row sees, minus infinity for any other.

        Columns are the n cells from `begin` on. A row sees the cells of its own sequence with positions `first` to
        `last`, both included. Releases the GIL; other threads may only call `usage` meanwhile.
        """
        cdef const int32_t[::1] given = self._sequences(sequences)
        cdef Py_ssize_t n = given.shape[0]
        cdef const int32_t[::1] low = checked_ints(first, "first", n)
        cdef const int32_t[::1] high = checked_ints(last, "last", n)
        cdef uint16_t[:, ::1] rows = checked_mask(mask, n)
        if not 0 <= begin <= self._cells.n - rows.shape[1]:
            raise ValueError(f"a mask has {self._cells.n} cells at most, got {rows.shape[1]} from {begin} on")
        cdef int32_t start = begin, end = begin + rows.shape[1]
        with nogil:
            lib.oe_mask_fill(self._cells, start, end, start_of(given), start_of(low), start_of(high), n,
                             mask_start(rows))

    @critical_section
    def n_indices(self, sequences):
        """Number of indices that `fill_indices` writes: the cells of these sequences, each sequence counted once."""
        cdef const int32_t[::1] given = self._sequences(sequences)
        return lib.oe_kv_indices_length(self._cells, start_of(given), given.shape[0])

    @critical_section
    def fill_indices(self, sequences, first, last, ranges, indices):
        """Write KV indices: for each row the cells that it sees, in the order of positions. Returns their number.

        `indices` int32 [n_indices or more] gets the cells of each sequence in turn. `ranges` int32 [rows, 2] gets for
        each row the part of `indices` that it sees, [begin, end). A row sees the same cells as in `fill_mask`. Releases
        the GIL; other threads may only call `usage` meanwhile.
        """
        cdef const int32_t[::1] given = self._sequences(sequences)
        cdef Py_ssize_t n = given.shape[0]
        cdef const int32_t[::1] low = checked_ints(first, "first", n)
        cdef const int32_t[::1] high = checked_ints(last, "last", n)
        cdef int32_t[:, ::1] rows = checked_rows(ranges, "ranges", 2)
        cdef int32_t[:, ::1] listed = checked_rows(indices, "indices", 1)
        cdef int64_t length = lib.oe_kv_indices_length(self._cells, start_of(given), n)
        if rows.shape[0] != n or rows.shape[1] != 2:
            raise ShapeError(f"ranges are a contiguous, writable int32 [{n}, 2], got {described(ranges)}")
        if listed.shape[1] < length:
            raise ShapeError(f"there are {length} indices, got room for them in {described(indices)}")
        with nogil:
            length = lib.oe_kv_indices_fill(self._cells, start_of(given), start_of(low), start_of(high), n,
                                            rows_start(rows), rows_start(listed))
        return length

    @critical_section
    def check(self):
        """Raise AssertionError unless the table is consistent; for tests and debugging."""
        cdef int32_t sequence = -1
        cdef const char *fault = lib.oe_cells_fault(self._cells, &sequence)
        if fault is not NULL:
            about = "the cell table" if sequence < 0 else f"sequence {sequence}"
            raise AssertionError(f"expected of {about}: {fault.decode('ascii')}")

    # -- one step ------------------------------------------------------------------------------------------------------

    @critical_section
    def slide(self, positions=_NOTHING, sequences=_NOTHING):
        """Free the cells that neither these new tokens, which have no cells yet, nor later tokens see."""
        cdef const int32_t[::1] places = checked_positions(positions)
        cdef const int32_t[::1] given = self._sequences(sequences, places.shape[0])
        lib.oe_cells_slide(self._cells, start_of(places), start_of(given), places.shape[0])

    @critical_section
    def find_places(self, positions, sequences):
        """A free cell for each token, or None when there are too few. Changes nothing.

        A token gets the lowest free cell behind the last cell of its sequence, or the lowest free cell if there is none
        behind. Attention adds up in the order of cells, so this keeps the order of positions where it can.
        """
        cdef const int32_t[::1] places = checked_positions(positions)
        cdef const int32_t[::1] given = self._sequences(sequences, places.shape[0])
        cdef int32_t[::1] cells = np.empty(places.shape[0], dtype=np.int32)
        cdef object order = None
        if not lib.oe_cells_in_order(self._cells, start_of(places), start_of(given), given.shape[0]):
            order = np.lexsort((places, given))
            given = np.ascontiguousarray(np.asarray(given)[order])
        if not lib.oe_cells_find(self._cells, start_of(given), given.shape[0], room_of(cells)):
            return None
        if order is None:
            return cells.base
        out = np.empty(places.shape[0], dtype=np.int32)
        out[order] = cells.base
        return out

    @critical_section
    def place(self, cells, positions, sequences):
        """Put tokens into free cells: each cell gets a position and one sequence.

        Raises ValueError, and changes nothing, where a cell is not free or a sequence would have a position twice.
        """
        cdef const int32_t[::1] where = checked_ints(cells, "cells")
        cdef const int32_t[::1] places = checked_positions(positions, where.shape[0])
        cdef const int32_t[::1] given = self._sequences(sequences, where.shape[0])
        check_range(where, self._cells.n, "cells")
        cdef int done = lib.oe_cells_place(self._cells, start_of(where), start_of(places), start_of(given),
                                           where.shape[0])
        if done == lib.OE_NO_MEMORY:
            raise NoMemoryError(f"no memory to list {where.shape[0]} more cells")
        if not done:
            raise ValueError("tokens go into free cells, one each, and a sequence has each position once; some of "
                             "these cells are used or named twice, or positions are there already")

    # -- one sequence --------------------------------------------------------------------------------------------------

    @critical_section
    def share(self, source, target, end):
        """Let `target`, which has no cells, share those of `source` with positions below `end`; returns how many."""
        cdef int32_t giver = self._sequence(source), taker = self._sequence(target)
        cdef int32_t n = lib.oe_cells_share(self._cells, giver, taker, bound_of(end))
        if n == lib.OE_NO_MEMORY:
            raise NoMemoryError(f"no memory to list the cells that sequence {target} shares")
        if n < 0:
            raise ValueError(f"sequence {target} has tokens; remove them before it shares those of another")
        return n

    @critical_section
    def remove(self, sequence, begin=0, end=None):
        """Take `sequence` out of its cells with begin <= position < end; cells without sequences become free."""
        cdef int64_t stop = INT64_MAX if end is None else bound_of(end)
        return lib.oe_cells_remove(self._cells, self._sequence(sequence), bound_of(begin), stop)

    @critical_section
    def can_shift(self, sequence, begin, discard, without=_NOTHING):
        """Whether `shift_plan` would find enough free cells after removing the sequences of `without`."""
        cdef const int32_t[::1] given = self._sequences(without)
        return lib.oe_cells_can_shift(self._cells, self._sequence(sequence), checked_begin(begin),
                                      checked_discard(discard), start_of(given), given.shape[0])

    @critical_section
    def shift_plan(self, sequence, begin, discard):
        """The moves of a shift that discards `discard` positions from `begin` on, in the order of positions.

        Tokens behind them move down by `discard` positions. Cells of this sequence alone stay in place; cells that it
        shares are copied to the lowest cells that are free by then. None where too few are free. Changes nothing.
        """
        cdef int32_t s = self._sequence(sequence)
        cdef int32_t count = self._cells.sequence[s].end - self._cells.sequence[s].begin
        cdef int32_t[::1] sources = np.empty(count, dtype=np.int32)
        cdef int32_t[::1] targets = np.empty(count, dtype=np.int32)
        cdef int32_t n = lib.oe_cells_shift_plan(self._cells, s, checked_begin(begin), checked_discard(discard),
                                                 room_of(sources), room_of(targets))
        return None if n < 0 else Moves(sources.base[:n], targets.base[:n])

    @critical_section
    def shift(self, sequence, begin, discard, moves):
        """Apply the moves that `shift_plan` returned for the table as it is now. Raises ValueError for any others."""
        cdef object plan = self.shift_plan(sequence, begin, discard)
        if plan is None or not all(np.array_equal(mine, given) for mine, given in zip(plan, moves, strict=True)):
            raise ValueError("these moves are not those that shift_plan gives")
        cdef const int32_t[::1] targets = plan.targets
        lib.oe_cells_shift(self._cells, self._sequence(sequence), checked_begin(begin), checked_discard(discard),
                           start_of(targets))

    @critical_section
    def pack_plan(self, begin, end, most):
        """The first `most` moves that close the gaps among the cells [begin, end), which keep their order."""
        if not (0 <= begin <= end <= self._cells.n and 0 <= most):
            raise ValueError(f"a run of {self._cells.n} cells and a number of moves, got {begin}, {end} and {most}")
        cdef int32_t[::1] sources = np.empty(min(most, end - begin), dtype=np.int32)
        cdef int32_t[::1] targets = np.empty_like(sources.base)
        cdef int32_t n = lib.oe_cells_pack_plan(self._cells, begin, end, len(sources), room_of(sources),
                                                room_of(targets))
        return Moves(sources.base[:n], targets.base[:n])

    @critical_section
    def pack(self, begin, end, most):
        """Apply the moves that `pack_plan` returned for these arguments and the table as it is now."""
        cdef object moves = self.pack_plan(begin, end, most)
        cdef const int32_t[::1] sources = moves.sources, targets = moves.targets
        lib.oe_cells_pack(self._cells, start_of(sources), start_of(targets), sources.shape[0])

    # -- internals -----------------------------------------------------------------------------------------------------

    cdef int32_t _sequence(self, object sequence) except -1:
        """Check a sequence number, and grow the table to hold it."""
        if not 0 <= sequence < MAX_SEQUENCES:
            raise ValueError(f"sequences are 0 to {MAX_SEQUENCES - 1}, got {sequence}")
        self._hold(sequence)
        return sequence

    cdef const int32_t[::1] _sequences(self, object given, Py_ssize_t n=-1):
        cdef const int32_t[::1] view = checked_ints(given, "sequences", n)
        self._hold(check_range(view, lib.OE_SEQUENCES_MAX, "sequences"))
        return view

    cdef int _hold(self, int32_t highest) except -1:
        if not lib.oe_cells_hold(self._cells, highest + 1):
            raise NoMemoryError(f"no memory for {highest + 1} cache sequences")
        return 0


def fill_range_mask(ranges, mask):
    """Write masks of rows that see a range of columns each: `ranges` as of `fill_indices`, `mask` float16 [rows, n]."""
    cdef int32_t[:, ::1] rows = checked_rows(ranges, "ranges", 2)
    cdef uint16_t[:, ::1] out = checked_mask(mask, rows.shape[0])
    cdef Py_ssize_t i
    if rows.shape[1] != 2:
        raise ShapeError(f"ranges are a contiguous, writable int32 [rows, 2], got {described(ranges)}")
    for i in range(rows.shape[0]):
        if not 0 <= rows[i, 0] <= rows[i, 1] <= out.shape[1]:
            raise ValueError(f"ranges lie within {out.shape[1]} columns, got {rows[i, 0]} to {rows[i, 1]}")
    with nogil:
        lib.oe_mask_of_ranges(rows_start(rows), rows.shape[0], out.shape[1], mask_start(out))
