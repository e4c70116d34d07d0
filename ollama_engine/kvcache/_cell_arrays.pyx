"""Arrays and numbers that callers give Cells, checked and as C takes them."""

import numpy as np

from libc.stdint cimport int32_t, int64_t, uint16_t

from ollama_engine.errors import ShapeError


cdef int64_t limit_of(str name, object limit) except -1:
    """A window or chunk size for C, where 0 means unlimited."""
    if limit is not None and limit < 1:
        raise ValueError(f"{name} is at least 1, got {limit}")
    return 0 if limit is None else min(limit, 1 << 32)


cdef int64_t bound_of(object position) except? -1:
    """A bound to compare positions with, clamped: positions have 32 bits."""
    return max(-1 << 32, min(position, 1 << 32))


cdef int64_t checked_begin(object begin) except -1:
    if begin < 0:
        raise ValueError(f"a shift begins at 0 or later, got {begin}")
    return bound_of(begin)


cdef int64_t checked_discard(object discard) except -1:
    if discard < 1:
        raise ValueError(f"a shift discards 1 position or more, got {discard}")
    return bound_of(discard)


cdef const int32_t[::1] checked_ints(object given, str name, Py_ssize_t n=-1):
    cdef const int32_t[::1] view = None
    try:
        view = given
    except (TypeError, ValueError, BufferError):
        view = None
    if view is None or (n >= 0 and view.shape[0] != n):
        raise ShapeError(f"{name} are a contiguous int32 [{'n' if n < 0 else n}], got {described(given)}")
    return view


cdef const int32_t[::1] checked_positions(object given, Py_ssize_t n=-1):
    cdef const int32_t[::1] view = checked_ints(given, "positions", n)
    check_range(view, 1 << 31, "positions")
    return view


cdef int32_t check_range(const int32_t[::1] view, int64_t end, str name) except? -1:
    """Raise ValueError unless all values lie in [0, end). Returns the highest; -1 for an empty array."""
    cdef int32_t highest = -1
    cdef Py_ssize_t i
    for i in range(view.shape[0]):
        if view[i] < 0 or view[i] >= end:
            raise ValueError(f"{name} are 0 to {end - 1}, got {view[i]}")
        highest = max(highest, view[i])
    return highest


cdef uint16_t[:, ::1] checked_mask(object given, Py_ssize_t n):
    cdef uint16_t[:, ::1] view = None
    try:
        if given.dtype == np.float16:
            view = given.view(np.uint16)
    except (AttributeError, TypeError, ValueError, BufferError):
        view = None
    if view is None or view.shape[0] != n:
        raise ShapeError(f"a mask is a contiguous, writable float16 [{n}, cells], got {described(given)}")
    return view


cdef int32_t[:, ::1] checked_rows(object given, str name, int dims):
    """A writable int32 view with two dimensions; a one-dimensional array becomes a single row."""
    cdef int32_t[:, ::1] view = None
    try:
        if given.ndim == dims:
            view = given if dims == 2 else given[None, :]
    except (AttributeError, TypeError, ValueError, BufferError):
        view = None
    if view is None:
        raise ShapeError(f"{name} are a contiguous, writable int32 of {dims} dimensions, got {described(given)}")
    return view


cdef str described(object given):
    shape = getattr(given, "shape", None)
    if shape is None:
        return type(given).__name__
    return f"{getattr(given, 'dtype', type(given).__name__)} {list(shape)}"
