"""Cells: owns a cell table of csrc/kvcache/cells.c, and the border where Python's arguments are checked."""

import numpy as np

from cython cimport final
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint16_t
from libc.string cimport memcpy

from ollama_engine.kvcache cimport libcells as lib

from ollama_engine.errors import NoMemoryError, ShapeError
from ollama_engine.kvcache.moves import Moves

__all__ = ["MAX_CELLS", "MAX_SEQUENCES", "Cells", "fill_range_mask"]

MAX_CELLS = lib.OE_CELLS_MAX
MAX_SEQUENCES = lib.OE_SEQUENCES_MAX

cdef object _NOTHING = np.empty(0, dtype=np.int32)


@final
cdef class Cells:
    """`n_cells` cells, all free at first: up to 16 Mi of them, for sequences 0 to MAX_SEQUENCES - 1.

    The table grows with the highest sequence that is spoken of, and with what sequences hold. `window`, `chunk` and
    `memory` are those of `Visibility`: cells that no later token sees are given up when others need them.

    Arrays of cells, positions and sequences are int32 and contiguous. Wrong arrays raise ShapeError, numbers out of
    range ValueError, and what would grow NoMemoryError; then nothing has changed. Use it from one thread at a time.

    Raises ValueError for an n_cells or a limit out of range, and NoMemoryError.
    """

    cdef lib.oe_cells *_cells

    def __cinit__(self, n_cells, *, window=None, chunk=None, memory=0):
        if not 1 <= n_cells <= MAX_CELLS:
            raise ValueError(f"a cache has at least one cell and at most {MAX_CELLS}, got {n_cells}")
        cdef lib.oe_reach reach = lib.oe_reach(_limit("window", window), _limit("chunk", chunk), 0)
        if memory < 0:
            raise ValueError(f"memory is at least 0, got {memory}")
        reach.memory = min(memory, 1 << 32)
        self._cells = lib.oe_cells_create(n_cells, reach)
        if self._cells is NULL:
            raise NoMemoryError(f"no memory for a table of {n_cells} cells")

    def __dealloc__(self):
        lib.oe_cells_destroy(self._cells)

    # -- what is there -------------------------------------------------------------------------------------------------

    def __len__(self):
        return self._cells.n

    @property
    def positions(self):
        """A copy, int32 [n_cells]: the position of each cell, -1 of free ones."""
        cdef int32_t[::1] out = np.empty(self._cells.n, dtype=np.int32)
        memcpy(&out[0], self._cells.position, self._cells.n * sizeof(int32_t))
        return out.base

    def of(self, sequence):
        """The cells of a sequence and their positions, in the order of positions: two copies, int32 [held]."""
        cdef lib.oe_sequence *s = &self._cells.sequence[self._sequence(sequence)]
        cdef int32_t n = s.end - s.begin, i
        cdef int32_t[::1] cells = np.empty(n, dtype=np.int32), positions = np.empty(n, dtype=np.int32)
        for i in range(n):
            cells[i] = s.cell[s.begin + i]
            positions[i] = self._cells.position[cells[i]]
        return cells.base, positions.base

    @property
    def n_free(self):
        """Cells that hold no token."""
        return self._cells.n - self._cells.n_used

    def room(self, without=_NOTHING):
        """Free cells that there would be without what no later token sees, and without these sequences."""
        cdef const int32_t[::1] given = self._sequences(without)
        return lib.oe_cells_room(self._cells, &given[0], given.shape[0])

    def room_for(self, positions, sequences):
        """Free cells that there would be after `slide`. Changes nothing."""
        cdef const int32_t[::1] places = _positions(positions)
        cdef const int32_t[::1] given = self._sequences(sequences, places.shape[0])
        return lib.oe_cells_room_for(self._cells, &places[0], &given[0], places.shape[0])

    def usage(self):
        """(cells that some later token sees, those of them with two sequences or more)."""
        cdef lib.oe_cells_held held = lib.oe_cells_usage(self._cells)
        return held.used, held.shared

    def span(self, sequences):
        """(lowest cell, one more than the highest) that any of these sequences has; (0, 0) for none."""
        cdef const int32_t[::1] given = self._sequences(sequences)
        cdef int32_t begin = 0, end = 0
        lib.oe_cells_span(self._cells, &given[0], given.shape[0], &begin, &end)
        return begin, end

    def has_all(self, sequence, begin, end):
        """Whether every position from `begin` to before `end` of a sequence is there."""
        return lib.oe_cells_has_all(self._cells, self._sequence(sequence), _bound(begin), _bound(end))

    def fill_mask(self, begin, sequences, first, last, mask):
        """Write what each row attends to into float16 [rows, n]: 0 for a cell that it sees, minus infinity otherwise.

        Columns are the n cells from `begin` on. A row sees its own sequence's cells with positions from its `first` to
        its `last`, both included. The GIL is released; only `usage` may be asked meanwhile.
        """
        cdef const int32_t[::1] given = self._sequences(sequences)
        cdef Py_ssize_t n = given.shape[0]
        cdef const int32_t[::1] low = _ints(first, "first", n)
        cdef const int32_t[::1] high = _ints(last, "last", n)
        cdef uint16_t[:, ::1] rows = _mask(mask, n)
        if not 0 <= begin <= self._cells.n - rows.shape[1]:
            raise ValueError(f"a mask has {self._cells.n} cells at most, got {rows.shape[1]} from {begin} on")
        cdef int32_t start = begin, end = begin + rows.shape[1]
        with nogil:
            lib.oe_mask_fill(self._cells, start, end, &given[0], &low[0], &high[0], n, &rows[0, 0])

    def n_indices(self, sequences):
        """Cells of these sequences, each of which counts once: as many as `fill_indices` writes."""
        cdef const int32_t[::1] given = self._sequences(sequences)
        return lib.oe_kv_indices_length(self._cells, &given[0], given.shape[0])

    def fill_indices(self, sequences, first, last, ranges, indices):
        """Write what each row attends to as indices of cells, in the order of positions; returns how many.

        `indices` int32 [n_indices or more] gets the cells of each sequence in turn, `ranges` int32 [rows, 2] for each
        row where in it what it sees begins, and before what it ends. A row sees what it would in `fill_mask`. The GIL
        is released; only `usage` may be asked meanwhile.
        """
        cdef const int32_t[::1] given = self._sequences(sequences)
        cdef Py_ssize_t n = given.shape[0]
        cdef const int32_t[::1] low = _ints(first, "first", n)
        cdef const int32_t[::1] high = _ints(last, "last", n)
        cdef int32_t[:, ::1] rows = _writable(ranges, "ranges", 2)
        cdef int32_t[:, ::1] listed = _writable(indices, "indices", 1)
        cdef int64_t length = lib.oe_kv_indices_length(self._cells, &given[0], n)
        if rows.shape[0] != n or rows.shape[1] != 2:
            raise ShapeError(f"ranges are a contiguous, writable int32 [{n}, 2], got {_describe(ranges)}")
        if listed.shape[1] < length:
            raise ShapeError(f"there are {length} indices, got room for them in {_describe(indices)}")
        with nogil:
            length = lib.oe_kv_indices_fill(self._cells, &given[0], &low[0], &high[0], n, &rows[0, 0], &listed[0, 0])
        return length

    def check(self):
        """Raise AssertionError unless the table is consistent; for tests and debugging."""
        cdef int32_t sequence = -1
        cdef const char *fault = lib.oe_cells_fault(self._cells, &sequence)
        if fault is not NULL:
            about = "the cell table" if sequence < 0 else f"sequence {sequence}"
            raise AssertionError(f"expected of {about}: {fault.decode('ascii')}")

    # -- one step ------------------------------------------------------------------------------------------------------

    def slide(self, positions=_NOTHING, sequences=_NOTHING):
        """Give up what neither these tokens, which are not placed yet, nor later ones see."""
        cdef const int32_t[::1] places = _positions(positions)
        cdef const int32_t[::1] given = self._sequences(sequences, places.shape[0])
        lib.oe_cells_slide(self._cells, &places[0], &given[0], places.shape[0])

    def find_places(self, positions, sequences):
        """A free cell for each token, or None when there are too few. Changes nothing.

        Attention sums in the order of cells; to keep that the order of positions, a token gets the lowest free cell
        behind the last one of its sequence, and the lowest free one only where none is behind.
        """
        cdef const int32_t[::1] places = _positions(positions)
        cdef const int32_t[::1] given = self._sequences(sequences, places.shape[0])
        cdef int32_t[::1] found = np.empty(places.shape[0], dtype=np.int32)
        cdef object order = None
        if not lib.oe_cells_in_order(self._cells, &places[0], &given[0], given.shape[0]):
            order = np.lexsort((places, given))
            given = np.ascontiguousarray(np.asarray(given)[order])
        if not lib.oe_cells_find(self._cells, &given[0], given.shape[0], &found[0]):
            return None
        if order is None:
            return found.base
        out = np.empty(places.shape[0], dtype=np.int32)
        out[order] = found.base
        return out

    def place(self, cells, positions, sequences):
        """Give free cells a position and one sequence each.

        Raises ValueError, and changes nothing, where a cell is not free or a sequence would have a position twice.
        """
        cdef const int32_t[::1] where = _ints(cells, "cells")
        cdef const int32_t[::1] places = _positions(positions, where.shape[0])
        cdef const int32_t[::1] given = self._sequences(sequences, where.shape[0])
        _check_range(where, self._cells.n, "cells")
        cdef int done = lib.oe_cells_place(self._cells, &where[0], &places[0], &given[0], where.shape[0])
        if done == lib.OE_NO_MEMORY:
            raise NoMemoryError(f"no memory to list {where.shape[0]} more cells")
        if not done:
            raise ValueError("tokens go into free cells, one each, and a sequence has each position once; some of "
                             "these cells are used or named twice, or positions are there already")

    # -- one sequence --------------------------------------------------------------------------------------------------

    def share(self, source, target, end):
        """Let `target`, which has no cells, share those of `source` with positions below `end`; returns how many."""
        cdef int32_t giver = self._sequence(source), taker = self._sequence(target)
        cdef int32_t n = lib.oe_cells_share(self._cells, giver, taker, _bound(end))
        if n == lib.OE_NO_MEMORY:
            raise NoMemoryError(f"no memory to list the cells that sequence {target} shares")
        if n < 0:
            raise ValueError(f"sequence {target} has tokens; remove them before it shares those of another")
        return n

    def remove(self, sequence, begin=0, end=None):
        """Take `sequence` out of its cells with begin <= position < end; cells without sequences become free."""
        cdef int64_t stop = INT64_MAX if end is None else _bound(end)
        return lib.oe_cells_remove(self._cells, self._sequence(sequence), _bound(begin), stop)

    def can_shift(self, sequence, begin, discard, without=_NOTHING):
        """Whether `shift_plan` would find enough free cells if these other sequences had been removed."""
        cdef const int32_t[::1] given = self._sequences(without)
        return lib.oe_cells_can_shift(self._cells, self._sequence(sequence), _begin(begin), _discard(discard),
                                      &given[0], given.shape[0])

    def shift_plan(self, sequence, begin, discard):
        """Where the keys go when a sequence loses `discard` positions from `begin` on and what follows moves down.

        In the order of positions. Cells of this sequence alone stay in place, those that others share go to the lowest
        cells that are free by then. None when there are too few of these. Changes nothing.
        """
        cdef int32_t s = self._sequence(sequence)
        cdef int32_t count = self._cells.sequence[s].end - self._cells.sequence[s].begin
        cdef int32_t[::1] sources = np.empty(count, dtype=np.int32)
        cdef int32_t[::1] targets = np.empty(count, dtype=np.int32)
        cdef int32_t n = lib.oe_cells_shift_plan(self._cells, s, _begin(begin), _discard(discard), &sources[0],
                                                 &targets[0])
        return None if n < 0 else Moves(sources.base[:n], targets.base[:n])

    def shift(self, sequence, begin, discard, moves):
        """Carry out a shift that `shift_plan` gave of the table as it is. Raises ValueError for other moves."""
        cdef object plan = self.shift_plan(sequence, begin, discard)
        if plan is None or not all(np.array_equal(mine, given) for mine, given in zip(plan, moves, strict=True)):
            raise ValueError("these moves are not those that shift_plan gives")
        cdef const int32_t[::1] targets = plan.targets
        lib.oe_cells_shift(self._cells, self._sequence(sequence), _begin(begin), _discard(discard), &targets[0])

    # -- inside --------------------------------------------------------------------------------------------------------

    cdef int32_t _sequence(self, object sequence) except -1:
        """A sequence that the table has from now on."""
        if not 0 <= sequence < MAX_SEQUENCES:
            raise ValueError(f"sequences are 0 to {MAX_SEQUENCES - 1}, got {sequence}")
        self._hold(sequence)
        return sequence

    cdef const int32_t[::1] _sequences(self, object given, Py_ssize_t n=-1):
        cdef const int32_t[::1] view = _ints(given, "sequences", n)
        self._hold(_check_range(view, lib.OE_SEQUENCES_MAX, "sequences"))
        return view

    cdef int _hold(self, int32_t highest) except -1:
        if not lib.oe_cells_hold(self._cells, highest + 1):
            raise NoMemoryError(f"no memory for {highest + 1} cache sequences")
        return 0


def fill_range_mask(ranges, mask):
    """Write masks of rows that see a range of columns each: `ranges` as of `fill_indices`, `mask` float16 [rows, n]."""
    cdef int32_t[:, ::1] rows = _writable(ranges, "ranges", 2)
    cdef uint16_t[:, ::1] out = _mask(mask, rows.shape[0])
    cdef Py_ssize_t i
    if rows.shape[1] != 2:
        raise ShapeError(f"ranges are a contiguous, writable int32 [rows, 2], got {_describe(ranges)}")
    for i in range(rows.shape[0]):
        if not 0 <= rows[i, 0] <= rows[i, 1] <= out.shape[1]:
            raise ValueError(f"ranges lie within {out.shape[1]} columns, got {rows[i, 0]} to {rows[i, 1]}")
    with nogil:
        lib.oe_mask_of_ranges(&rows[0, 0], rows.shape[0], out.shape[1], &out[0, 0])


# -- the border --------------------------------------------------------------------------------------------------------

cdef int64_t _limit(str name, object limit) except -1:
    """A window or chunk size for C, where 0 means unlimited."""
    if limit is not None and limit < 1:
        raise ValueError(f"{name} is at least 1, got {limit}")
    return 0 if limit is None else min(limit, 1 << 32)


cdef int64_t _bound(object position) except? -1:
    """A position to compare with: beyond 32 bits all are alike."""
    return max(-1 << 32, min(position, 1 << 32))


cdef int64_t _begin(object begin) except -1:
    if begin < 0:
        raise ValueError(f"a shift begins at 0 or later, got {begin}")
    return _bound(begin)


cdef int64_t _discard(object discard) except -1:
    if discard < 1:
        raise ValueError(f"a shift discards 1 position or more, got {discard}")
    return _bound(discard)


cdef const int32_t[::1] _ints(object given, str name, Py_ssize_t n=-1):
    cdef const int32_t[::1] view = None
    try:
        view = given
    except (TypeError, ValueError, BufferError):
        view = None
    if view is None or (n >= 0 and view.shape[0] != n):
        raise ShapeError(f"{name} are a contiguous int32 [{'n' if n < 0 else n}], got {_describe(given)}")
    return view


cdef const int32_t[::1] _positions(object given, Py_ssize_t n=-1):
    cdef const int32_t[::1] view = _ints(given, "positions", n)
    _check_range(view, 1 << 31, "positions")
    return view


cdef int32_t _check_range(const int32_t[::1] view, int64_t end, str name) except? -1:
    """The highest, -1 of none."""
    cdef int32_t highest = -1
    cdef Py_ssize_t i
    for i in range(view.shape[0]):
        if view[i] < 0 or view[i] >= end:
            raise ValueError(f"{name} are 0 to {end - 1}, got {view[i]}")
        highest = max(highest, view[i])
    return highest


cdef uint16_t[:, ::1] _mask(object given, Py_ssize_t n):
    cdef uint16_t[:, ::1] view = None
    try:
        if given.dtype == np.float16:
            view = given.view(np.uint16)
    except (AttributeError, TypeError, ValueError, BufferError):
        view = None
    if view is None or view.shape[0] != n:
        raise ShapeError(f"a mask is a contiguous, writable float16 [{n}, cells], got {_describe(given)}")
    return view


cdef int32_t[:, ::1] _writable(object given, str name, int dims):
    """int32 of two dimensions, or of one as a single row."""
    cdef int32_t[:, ::1] view = None
    try:
        if given.ndim == dims:
            view = given if dims == 2 else given[None, :]
    except (AttributeError, TypeError, ValueError, BufferError):
        view = None
    if view is None:
        raise ShapeError(f"{name} are a contiguous, writable int32 of {dims} dimensions, got {_describe(given)}")
    return view


cdef str _describe(object given):
    shape = getattr(given, "shape", None)
    if shape is None:
        return type(given).__name__
    return f"{getattr(given, 'dtype', type(given).__name__)} {list(shape)}"
