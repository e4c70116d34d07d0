from libc.stdint cimport int32_t, int64_t, uint16_t


cdef int64_t limit_of(str name, object limit) except -1
cdef int64_t bound_of(object position) except? -1
cdef int64_t checked_begin(object begin) except -1
cdef int64_t checked_discard(object discard) except -1
cdef const int32_t[::1] checked_ints(object given, str name, Py_ssize_t n=*)
cdef const int32_t[::1] checked_positions(object given, Py_ssize_t n=*)
cdef int32_t check_range(const int32_t[::1] view, int64_t end, str name) except? -1
cdef uint16_t[:, ::1] checked_mask(object given, Py_ssize_t n)
cdef int32_t[:, ::1] checked_rows(object given, str name, int dims)
cdef str described(object given)


# Where arrays start; NULL for an empty one, which has no element 0.

cdef inline const int32_t *start_of(const int32_t[::1] array) noexcept nogil:
    return &array[0] if array.shape[0] else NULL


cdef inline int32_t *room_of(int32_t[::1] array) noexcept nogil:
    return &array[0] if array.shape[0] else NULL


cdef inline int32_t *rows_start(int32_t[:, ::1] array) noexcept nogil:
    return &array[0, 0] if array.shape[0] and array.shape[1] else NULL


cdef inline uint16_t *mask_start(uint16_t[:, ::1] mask) noexcept nogil:
    return &mask[0, 0] if mask.shape[0] and mask.shape[1] else NULL
