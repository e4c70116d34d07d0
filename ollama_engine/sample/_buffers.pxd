from libc.stdint cimport int32_t, uint32_t


cdef const float[::1] checked_row(object logits, int n_vocab)
cdef const uint32_t[::1] checked_mask(object mask, int n_vocab)
cdef const uint32_t *words_of(const uint32_t[::1] allowed) noexcept
cdef int32_t checked_token(object token, int n_vocab) except -1
