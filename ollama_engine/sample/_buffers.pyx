"""Buffers and numbers that callers give a Sampler, checked and as C takes them; arguments.py has the other checks."""

from operator import index

from libc.stdint cimport int32_t, uint32_t

from ollama_engine.sample cimport libsample as lib

from ollama_engine.errors import ShapeError, TokenizerError
from ollama_engine.sample.arguments import describe


cdef const float[::1] checked_row(object logits, int n_vocab):
    cdef const float[::1] row = None
    try:
        row = logits
    except (TypeError, ValueError, BufferError):
        row = None
    if row is None or row.shape[0] != n_vocab:
        raise ShapeError(f"logits must be a contiguous float32 [{n_vocab}], got {describe(logits)}")
    return row


cdef const uint32_t[::1] checked_mask(object mask, int n_vocab):
    """The mask's words; None for None."""
    cdef const uint32_t[::1] words = None
    cdef Py_ssize_t expected = lib.oe_mask_words(n_vocab)
    if mask is None:
        return None
    try:
        words = mask
    except (TypeError, ValueError, BufferError):
        words = None
    if words is None or words.shape[0] != expected:
        raise ShapeError(f"a token mask over {n_vocab} tokens must be a contiguous uint32 [{expected}], "
                         f"got {describe(mask)}")
    return words


cdef const uint32_t *words_of(const uint32_t[::1] allowed) noexcept:
    if allowed is None:
        return NULL
    return &allowed[0]


cdef int32_t checked_token(object token, int n_vocab) except -1:
    number = index(token)
    if not 0 <= number < n_vocab:
        raise TokenizerError(f"token ids must be from 0 to {n_vocab - 1}, got {token}")
    return number
