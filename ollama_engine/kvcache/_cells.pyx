"""Cells: owns a cell table of csrc/kvcache/cells.c, and the border where Python's arguments are checked."""

import numpy as np

from cython cimport final
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint16_t, uint64_t
from libc.string cimport memcpy

from ollama_engine.kvcache cimport libcells as lib

from ollama_engine.errors import NoMemoryError, ShapeError
from ollama_engine.kvcache.moves import Moves

__all__ = ["MAX_CELLS", "MAX_SEQUENCES", "Cells"]

MAX_CELLS = lib.OE_CELLS_MAX
MAX_SEQUENCES = lib.OE_SEQUENCES

cdef object _NOTHING = np.empty(0, dtype=np.int32)


@final
cdef class Cells:
    """`n_cells` cells, all free at first: up to 16 Mi of them, for sequences 0 to 63.

    Arrays of cells, positions and sequences are int32 and contiguous. `ends` are int64 [64]: what of each sequence lies
    below its end is given up, 0 where nothing is. Wrong arrays raise ShapeError, numbers out of range ValueError; then
    nothing has changed. Use it from one thread at a time.

    Raises ValueError for an n_cells out of range and NoMemoryError.
    """

    cdef lib.oe_cells *_cells

    def __cinit__(self, n_cells):
        if not 1 <= n_cells <= MAX_CELLS:
            raise ValueError(f"a cache has at least one cell and at most {MAX_CELLS}, got {n_cells}")
        self._cells = lib.oe_cells_create(n_cells)
        if self._cells is NULL:
            raise NoMemoryError(f"no memory for a table of {n_cells} cells")

    def __dealloc__(self):
        lib.oe_cells_destroy(self._cells)

    @staticmethod
    def from_table(positions, owners):
        """A table of these positions, int32 [n], and sets of sequences, one bit each, uint64 [n]; no owner: free.

        Raises ValueError where a used cell has no position, or a sequence has a position twice.
        """
        cdef const int32_t[::1] places = _ints(positions, "positions")
        cdef const uint64_t[::1] sets = _words(owners)
        cdef int32_t i
        if places.shape[0] != sets.shape[0]:
            raise ShapeError(f"as many positions as owners, got {places.shape[0]} and {sets.shape[0]}")
        cdef Cells cells = Cells(places.shape[0])
        for i in range(cells._cells.n):
            if sets[i]:
                if places[i] < 0:
                    raise ValueError(f"used cells have positions of 0 or more, cell {i} has {places[i]}")
                lib.oe_cells_put(cells._cells, i, places[i], sets[i])
        fault = _fault_of(cells)
        if fault:
            raise ValueError(fault)
        return cells

    # -- what is there -------------------------------------------------------------------------------------------------

    def __len__(self):
        return self._cells.n

    @property
    def positions(self):
        """A copy, int32 [n_cells]: the position of each cell, -1 of free ones."""
        cdef int32_t[::1] out = np.empty(self._cells.n, dtype=np.int32)
        memcpy(&out[0], self._cells.position, self._cells.n * sizeof(int32_t))
        return out.base

    @property
    def owners(self):
        """A copy, uint64 [n_cells]: the sequences of each cell, one bit each."""
        cdef uint64_t[::1] out = np.empty(self._cells.n, dtype=np.uint64)
        memcpy(&out[0], self._cells.owners, self._cells.n * sizeof(uint64_t))
        return out.base

    @property
    def n_used(self):
        """Cells that hold a token of some sequence."""
        return self._cells.n_used

    @property
    def n_free(self):
        """Cells that hold none."""
        return self._cells.n - self._cells.n_used

    def n_free_without(self, ends):
        """Free cells there would be after `remove_below(ends)`. Changes nothing."""
        cdef const int64_t[::1] below = _ends(ends)
        return lib.oe_cells_free_without(self._cells, &below[0])

    def usage_without(self, ends):
        """(used cells, those of them with two sequences or more, extent) after that. Changes nothing."""
        cdef const int64_t[::1] below = _ends(ends)
        cdef lib.oe_cells_usage usage = lib.oe_cells_usage_without(self._cells, &below[0])
        return usage.used, usage.shared, usage.extent

    def extent(self):
        """One more than the highest used cell."""
        return self._cells.extent

    def span(self, sequences):
        """(lowest cell, one more than the highest) that any of these sequences has; (0, 0) for none."""
        cdef const int32_t[::1] given = _sequences(sequences)
        cdef int32_t begin = 0, end = 0
        lib.oe_cells_span(self._cells, &given[0], given.shape[0], &begin, &end)
        return begin, end

    def last_position(self, sequence):
        """The highest position of a sequence, -1 when it has none."""
        cdef lib.oe_sequence *one = &self._cells.sequence[_sequence(sequence)]
        return one.last if one.count else -1

    def next_positions(self, positions=_NOTHING, sequences=_NOTHING):
        """int64 [64]: the first position of each sequence that is still to be computed.

        That is the lowest in a batch of these tokens, which are not placed yet. Of a sequence without any: one more
        than its last, which it remembers when `remove_below` takes all that it has.
        """
        cdef const int32_t[::1] places = _positions(positions)
        cdef const int32_t[::1] given = _sequences(sequences, places.shape[0])
        cdef int64_t[::1] out = np.empty(MAX_SEQUENCES, dtype=np.int64)
        lib.oe_cells_next(self._cells, &places[0], &given[0], places.shape[0], &out[0])
        return out.base

    def has_all(self, sequence, begin, end):
        """Whether every position from `begin` to before `end` of a sequence is there."""
        return lib.oe_cells_has_all(self._cells, _sequence(sequence), _bound(begin), _bound(end))

    def fill_mask(self, begin, sequences, first, last, mask):
        """Write what each row attends to into float16 [rows, n]: 0 for a cell that it sees, minus infinity otherwise.

        Columns are the n cells from `begin` on. A row sees its own sequence's cells with positions from its `first` to
        its `last`, both included. The GIL is released; no other call may use this table meanwhile.
        """
        cdef const int32_t[::1] given = _sequences(sequences)
        cdef Py_ssize_t n = given.shape[0]
        cdef const int32_t[::1] low = _ints(first, "first", n)
        cdef const int32_t[::1] high = _ints(last, "last", n)
        cdef uint16_t[:, ::1] rows = _mask(mask, n)
        if not 0 <= begin <= self._cells.n - rows.shape[1]:
            raise ValueError(f"a mask has {self._cells.n} cells at most, got {rows.shape[1]} from {begin} on")
        cdef int32_t start = begin, end = begin + rows.shape[1]
        with nogil:
            lib.oe_mask_fill(self._cells, start, end, &given[0], &low[0], &high[0], n, &rows[0, 0])

    def n_listed(self, sequences):
        """Cells of these sequences, each of which counts once: what `fill_lists` lists."""
        cdef const int32_t[::1] given = _sequences(sequences)
        return lib.oe_kv_indices_length(self._cells, &given[0], given.shape[0])

    def fill_lists(self, sequences, first, last, parts, cells):
        """Write what each row attends to as a list, in the order of positions; returns how many cells it names.

        `cells` int32 [n_listed or more] gets the cells of each sequence in turn, `parts` int32 [rows, 2] for each row
        where in it what it sees begins, and before what it ends. A row sees what it would in `fill_mask`. The GIL is
        released; no other call may use this table meanwhile. Raises NoMemoryError.
        """
        cdef const int32_t[::1] given = _sequences(sequences)
        cdef Py_ssize_t n = given.shape[0]
        cdef const int32_t[::1] low = _ints(first, "first", n)
        cdef const int32_t[::1] high = _ints(last, "last", n)
        cdef int32_t[:, ::1] rows = _writable(parts, "parts", 2)
        cdef int32_t[:, ::1] list = _writable(cells, "cells", 1)
        cdef int64_t needed = lib.oe_kv_indices_length(self._cells, &given[0], n), length
        if rows.shape[0] != n or rows.shape[1] != 2:
            raise ShapeError(f"parts are a contiguous, writable int32 [{n}, 2], got {_describe(parts)}")
        if list.shape[1] < needed:
            raise ShapeError(f"the list takes {needed} cells, got {_describe(cells)}")
        with nogil:
            length = lib.oe_kv_indices_fill(self._cells, &given[0], &low[0], &high[0], n, &rows[0, 0], &list[0, 0])
        if length == lib.OE_KV_INDICES_NO_MEMORY:
            raise NoMemoryError(f"no memory to put the cells of {n} rows in order")
        return length

    def check(self):
        """Raise AssertionError unless the table is consistent; for tests and debugging."""
        fault = _fault_of(self)
        if fault:
            raise AssertionError(fault)

    # -- changes -------------------------------------------------------------------------------------------------------

    def find_places(self, positions, sequences):
        """A free cell for each token, or None when there are too few. Changes nothing.

        Attention sums in the order of cells; to keep that the order of positions, a token gets the lowest free cell
        above all of its sequence, and the lowest free one only where none is above.
        """
        cdef const int32_t[::1] places = _positions(positions)
        cdef const int32_t[::1] given = _sequences(sequences, places.shape[0])
        cdef int32_t[::1] found = np.empty(places.shape[0], dtype=np.int32)
        cdef object order = None
        if not _in_order(places, given):
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
        cdef const int32_t[::1] given = _sequences(sequences, where.shape[0])
        _check_range(where, self._cells.n, "cells")
        if not lib.oe_cells_place(self._cells, &where[0], &places[0], &given[0], where.shape[0]):
            raise ValueError("tokens go into free cells, one each, and a sequence has each position once; some of "
                             "these cells are used or named twice, or positions are there already")

    def share(self, source, target, end):
        """Let `target`, which has no cells, share those of `source` with positions below `end`; returns how many."""
        cdef int32_t n = lib.oe_cells_share(self._cells, _sequence(source), _sequence(target), _bound(end))
        if n < 0:
            raise ValueError(f"sequence {target} has tokens; remove them before it shares those of another")
        return n

    def remove(self, sequence, begin=0, end=None):
        """Take `sequence` out of its cells with begin <= position < end; cells without sequences become free."""
        cdef int64_t stop = INT64_MAX if end is None else _bound(end)
        return lib.oe_cells_remove(self._cells, _sequence(sequence), _bound(begin), stop)

    def remove_below(self, ends):
        """Take each sequence out of its cells with positions below its end."""
        cdef const int64_t[::1] below = _ends(ends)
        lib.oe_cells_drop_below(self._cells, &below[0])

    # -- moving --------------------------------------------------------------------------------------------------------

    def shift_plan(self, sequence, begin, discard):
        """Where the keys go when a sequence loses `discard` positions from `begin` on and what follows moves down.

        Cells of this sequence alone stay in place, those that others share go to cells that are free by then. None
        when there are too few of these. Changes nothing.
        """
        cdef int32_t s = _sequence(sequence)
        cdef int32_t count = self._cells.sequence[s].count
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
        cdef const int32_t[::1] sources = plan.sources
        cdef const int32_t[::1] targets = plan.targets
        lib.oe_cells_shift(self._cells, _sequence(sequence), _begin(begin), _discard(discard), &sources[0], &targets[0],
                           sources.shape[0])

    def defrag_plan(self):
        """The fewest moves that leave no hole below a used cell: the highest used ones into the lowest holes."""
        cdef int32_t most = min(self._cells.n_used, self._cells.n - self._cells.n_used)
        cdef int32_t[::1] sources = np.empty(most, dtype=np.int32)
        cdef int32_t[::1] targets = np.empty(most, dtype=np.int32)
        cdef int32_t n = lib.oe_cells_defrag_plan(self._cells, &sources[0], &targets[0])
        return Moves(sources.base[:n], targets.base[:n])

    def move(self, moves):
        """Give the targets, which are free, what the sources have; the sources become free."""
        given_sources, given_targets = moves
        cdef const int32_t[::1] sources = _ints(given_sources, "sources")
        cdef const int32_t[::1] targets = _ints(given_targets, "targets", sources.shape[0])
        _check_range(sources, self._cells.n, "cells")
        _check_range(targets, self._cells.n, "cells")
        if not lib.oe_cells_move(self._cells, &sources[0], &targets[0], sources.shape[0]):
            raise ValueError("moves go from used cells to free ones, each named once")


# -- the border --------------------------------------------------------------------------------------------------------

cdef str _fault_of(Cells cells):
    cdef int32_t sequence = -1
    cdef const char *fault = lib.oe_cells_fault(cells._cells, &sequence)
    if fault is NULL:
        return None
    said = fault.decode("ascii")
    return f"expected of the cell table: {said}" if sequence < 0 else f"expected of sequence {sequence}: {said}"


cdef int32_t _sequence(object sequence) except -1:
    if not 0 <= sequence < MAX_SEQUENCES:
        raise ValueError(f"sequences are 0 to {MAX_SEQUENCES - 1}, got {sequence}")
    return sequence


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


cdef const int32_t[::1] _sequences(object given, Py_ssize_t n=-1):
    cdef const int32_t[::1] view = _ints(given, "sequences", n)
    _check_range(view, lib.OE_SEQUENCES, "sequences")
    return view


cdef const int32_t[::1] _positions(object given, Py_ssize_t n=-1):
    cdef const int32_t[::1] view = _ints(given, "positions", n)
    _check_range(view, 1 << 31, "positions")
    return view


cdef int _check_range(const int32_t[::1] view, int64_t end, str name) except -1:
    cdef Py_ssize_t i
    for i in range(view.shape[0]):
        if view[i] < 0 or view[i] >= end:
            raise ValueError(f"{name} are 0 to {end - 1}, got {view[i]}")
    return 0


cdef bint _in_order(const int32_t[::1] positions, const int32_t[::1] sequences) noexcept:
    """Whether the tokens of each sequence come in the order of their positions."""
    cdef int32_t last[64]
    cdef Py_ssize_t i
    for i in range(64):
        last[i] = -1
    for i in range(positions.shape[0]):
        if positions[i] <= last[sequences[i]]:
            return False
        last[sequences[i]] = positions[i]
    return True


cdef const int64_t[::1] _ends(object given):
    cdef const int64_t[::1] view = None
    try:
        view = given
    except (TypeError, ValueError, BufferError):
        view = None
    if view is None or view.shape[0] != MAX_SEQUENCES:
        raise ShapeError(f"ends are a contiguous int64 [{MAX_SEQUENCES}], got {_describe(given)}")
    return view


cdef const uint64_t[::1] _words(object given):
    cdef const uint64_t[::1] view = None
    try:
        view = given
    except (TypeError, ValueError, BufferError):
        view = None
    if view is None:
        raise ShapeError(f"owners are a contiguous uint64 [n], got {_describe(given)}")
    return view


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
