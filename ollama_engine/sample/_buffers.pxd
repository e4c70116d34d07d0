from libc.stdint cimport int32_t, uint32_t

from ollama_engine.sample cimport libsample as lib


cdef const float[::1] checked_row(object logits, int n_vocab)
cdef const uint32_t[::1] checked_mask(object mask, int n_vocab)
cdef const uint32_t *words_of(const uint32_t[::1] allowed) noexcept
cdef int32_t checked_token(object token, int n_vocab) except -1
cdef const float[:, ::1] checked_table(object logits, list sizes, bint alike)
cdef list checked_masks(object masks, list sizes)
cdef list checked_known(object known, list sizes)
cdef list checked_places(object rows, list sizes, Py_ssize_t n)
cdef list checked_drafts(object drafts, list begins, list sizes, Py_ssize_t n)
cdef object error_of(const lib.oe_sample_job *job)
cdef list tokens_of(const lib.oe_draft_job *verified)
