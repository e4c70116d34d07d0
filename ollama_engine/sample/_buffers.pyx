"""Buffers and numbers that callers give a Sampler, checked and as C takes them; arguments.py has the other checks.

And the errors that C reports for a row.
"""

from operator import index

from libc.stdint cimport int32_t, int64_t, uint32_t

from ollama_engine.sample cimport libsample as lib

from ollama_engine.errors import NoMemoryError, SamplingError, ShapeError, TokenizerError
from ollama_engine.sample.arguments import checked_tokens, describe


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


# -- of several samplers, which have vocabularies of these sizes -------------------------------------------------------

cdef const float[:, ::1] checked_table(object logits, list sizes, bint alike):
    """`alike`: there are as many rows as samplers."""
    cdef const float[:, ::1] table = None
    try:
        table = logits
    except (TypeError, ValueError, BufferError):
        table = None
    if table is None or (alike and table.shape[0] != len(sizes)):
        n = len(sizes) if alike else "n"
        raise ShapeError(f"logits must be a contiguous float32 [{n}, n_columns], got {describe(logits)}")
    for n_vocab in sizes:
        if table.shape[1] < n_vocab:
            raise ShapeError(f"a Sampler over {n_vocab} tokens got rows of {table.shape[1]} logits")
    return table


cdef list checked_masks(object masks, list sizes):
    """Views that keep each row's words where they are, or None when there are no masks."""
    if masks is None:
        return None
    cdef list given = list(masks)
    if len(given) != len(sizes):
        raise ShapeError(f"expected one mask (or None) for each of {len(sizes)} samplers, got {len(given)}")
    return [checked_mask(mask, n_vocab) for mask, n_vocab in zip(given, sizes)]


cdef list checked_known(object known, list sizes):
    cdef const int32_t[::1] ids
    cdef list given = [] if known is None else list(known)
    cdef Py_ssize_t i, j
    if known is not None and len(given) != len(sizes):
        raise ShapeError(f"expected known ids (or None) for each of {len(sizes)} samplers, got {len(given)}")
    for i in range(len(given)):
        ids = given[i]
        for j in range(0 if ids is None else ids.shape[0]):
            if not 0 <= ids[j] < <int>sizes[i]:
                raise ShapeError(f"known ids are below {sizes[i]}, got {ids[j]}")
    return given


cdef list checked_places(object rows, list sizes, Py_ssize_t n):
    """The row of each sampler, of n."""
    cdef list places = [index(row) for row in rows]
    if len(places) != len(sizes):
        raise ShapeError(f"expected one row for each of {len(sizes)} samplers, got {len(places)}")
    for row in places:
        if not 0 <= row < n:
            raise ShapeError(f"rows of these logits are 0 to {n - 1}, got {row}")
    return places


cdef list checked_drafts(object drafts, list begins, list sizes, Py_ssize_t n):
    """The draft of each sampler as int32, whose rows begin there and end before row n."""
    cdef list given = list(drafts)
    if len(given) != len(sizes):
        raise ShapeError(f"expected one draft for each of {len(sizes)} samplers, got {len(given)}")
    cdef list guessed = [checked_tokens(ids, n_vocab) for ids, n_vocab in zip(given, sizes)]
    for begin, draft in zip(begins, guessed):
        if begin + len(draft) >= n:
            raise ShapeError(f"a draft of {len(draft)} tokens from row {begin} on has no row behind it")
    return guessed


# -- errors ------------------------------------------------------------------------------------------------------------

cdef object error_of(const lib.oe_sample_job *job):
    if job.status == lib.OE_SAMPLE_NO_MEMORY:
        return NoMemoryError("no memory to choose the best tokens, or to remember one more")
    if job.status == lib.OE_SAMPLE_NO_TOKEN:
        return SamplingError(
            "every token is at -inf (by the model, a ban in logit_bias or the token mask): none can be chosen")
    return SamplingError(
        f"expected finite logits or -inf, got NaN or +inf in {job.bad_count} places, the first at token "
        f"{job.bad_first}: the model computed nonsense or overflowed; check the weights and the KV cache type")


cdef list tokens_of(const lib.oe_draft_job *verified):
    """The tokens that were accepted, and the error of the row behind them, if it has one."""
    cdef int64_t i
    cdef list tokens = [verified.tokens[i] for i in range(verified.n)]
    return tokens if verified.job.status == lib.OE_SAMPLE_OK else tokens + [error_of(&verified.job)]
