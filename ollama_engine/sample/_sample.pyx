"""Sampler: owns a sequence's sampler in csrc/sample/sampler.c. arguments.py and _buffers.pyx check what it is given."""

import os
from array import array

from cython cimport final
from libc.stdint cimport int32_t, uint32_t
from libc.stdlib cimport calloc, free, malloc
from libcpp.atomic cimport atomic

from ollama_engine.sample cimport libsample as lib
from ollama_engine.sample._buffers cimport (
    checked_drafts, checked_known, checked_mask, checked_masks, checked_places, checked_row, checked_table,
    checked_token, error_of, tokens_of, words_of,
)

from ollama_engine.errors import ConfigError, NoMemoryError, SamplingError, ShapeError
from ollama_engine.sample.arguments import (
    bias_arrays, check_breakers, checked_list, checked_n_vocab, checked_tokens, checked_top, native_params,
)
from ollama_engine.sample.logprobs import TokenLogprobs
from ollama_engine.sample.params import SamplingParams

__all__ = ["Sampler", "accept_rows", "sample_drafts", "sample_rows", "sampler_instructions"]


def sampler_instructions():
    """The instruction sets that this CPU has kernels of the sampler for, the slowest ("scalar") first."""
    return tuple(_kernels)


cdef dict _kernels = {
    lib.oe_logit_kernels_name(<lib.oe_logit_kernel_set><int>number).decode(): number
    for number in range(lib.OE_LOGIT_KERNEL_SETS)
    if lib.oe_logit_kernels_find(<lib.oe_logit_kernel_set><int>number) != NULL
}


cdef const lib.oe_logit_kernels *_kernels_of(object instructions) except NULL:
    if instructions is None:
        return lib.oe_logit_kernels_find(<lib.oe_logit_kernel_set><int>max(_kernels.values()))
    if instructions not in _kernels:
        raise ConfigError(f"no {instructions!r} kernels of the sampler here; there are {tuple(_kernels)}")
    return lib.oe_logit_kernels_find(<lib.oe_logit_kernel_set><int>_kernels[instructions])


@final  # sample_rows goes past Python: an override would be ignored there
cdef class Sampler:
    """Chooses the tokens of one sequence: its parameters, random stream and token history.

    One step: mask, logit_bias, the samplers of the chain in the order of `params.samplers`, draw. docs/sampling.md
    describes each of them and the papers they are from; what they share:

    * Probabilities are the softmax of the logits that the samplers before have left. Equal tokens rank by id, the
      lower one first. A token at -inf is no candidate for any sampler.
    * The draw walks the kept tokens in that rank order with one number of Philox4x32-10, keyed by the seed and
      counted by the draws made: the same seed, parameters, history and logits give the same token in any batch.
      XTC decides by another number of the same draw. Temperature 0 takes the best token and draws nothing, unless
      typical, XTC or penalties behind a cut leave something to chance.
    * mirostat and adaptive-p change their state when the token drawn last is accepted, and by no other token.

    Logits of -inf are tokens that cannot come. NaN and +inf raise: +inf is an overflow in the model, and a softmax
    over it is not defined. A failed call changes nothing. The logits are only read.

    A mask says which tokens are allowed, as the bitmaps of xgrammar, llguidance and vLLM do: bit i % 32 of word i // 32
    is set where token i is. The others count as logits of -inf before all else, so that penalties, biases and cuts see
    allowed tokens only, and the draw is the one that such logits would give. NaN and +inf raise at disallowed tokens
    too: the same product computed the logits of the allowed ones.

    Several rows of one sequence (drafted tokens that are verified) are sampled one after the other: sample, accept,
    sample ... A row that is not sampled draws nothing, so a token depends on the draws before it, not on the steps
    that they were made in.

    Use a Sampler from one thread at a time; different Samplers are independent.

    params: SamplingParams. n_vocab: number of logits, 1..2^24. instructions: one of `sampler_instructions()`, which all
    give the same tokens; None takes the fastest. breakers: SequenceBreakers of this vocabulary for DRY, or None;
    `params.dry_sequence_breakers`, being texts, are for who has the vocabulary (BreakerFinder).
    Raises ConfigError (n_vocab, a logit_bias or breakers that do not fit it, unknown instructions) and NoMemoryError.
    """

    cdef lib.oe_sampler *_sampler
    cdef lib.oe_dry_breakers _breakers
    cdef atomic[int] _busy
    cdef readonly object params
    cdef readonly int n_vocab
    # The seed in use: the one of params, or the fresh one that was drawn in its place.
    cdef readonly object seed
    cdef readonly object breakers  # whose arrays _breakers points to

    def __cinit__(self, params, n_vocab, instructions=None, breakers=None):
        if not isinstance(params, SamplingParams):
            raise TypeError(f"params must be SamplingParams, got {type(params).__name__}")
        self.params = params
        self.n_vocab = checked_n_vocab(n_vocab, lib.OE_SAMPLE_MAX_VOCAB)
        self.seed = int.from_bytes(os.urandom(8), "little") if params.seed is None else params.seed
        bias_id, bias = bias_arrays(params.logit_bias, self.n_vocab)
        cdef const int32_t[::1] ids = bias_id
        cdef const float[::1] values = bias
        cdef lib.oe_sample_params native = native_params(params, self.seed, lib.OE_LINKS)
        self._sampler = lib.oe_sampler_create(&native, self.n_vocab, _kernels_of(instructions),
                                              &ids[0] if bias else NULL, &values[0] if bias else NULL, len(bias),
                                              self._set_breakers(breakers))
        if self._sampler is NULL:
            raise NoMemoryError(f"no memory for a sampler over {self.n_vocab} tokens")

    cdef const lib.oe_dry_breakers *_set_breakers(self, object breakers) except? NULL:
        if breakers is None:
            return NULL
        check_breakers(breakers, self.n_vocab)
        cdef const uint32_t[::1] single = breakers.single
        cdef const int32_t[::1] first = breakers.first, start = breakers.start, rest = breakers.rest
        self.breakers = breakers
        self._breakers = lib.oe_dry_breakers(
            single=&single[0], n_sequences=len(breakers.first) - 1, first=&first[0], start=&start[0], rest=&rest[0])
        return &self._breakers

    def __dealloc__(self):
        lib.oe_sampler_destroy(self._sampler)

    def __repr__(self):
        return f"Sampler({self.params!r}, n_vocab={self.n_vocab}, seed={self.seed}, draws={self.draws})"

    @property
    def draws(self):
        """How many random numbers have been drawn: the position in the random stream."""
        return lib.oe_sampler_draws(self._sampler)

    @property
    def mirostat_mu(self):
        """The surprise in bits that mirostat allows the next token."""
        return lib.oe_sampler_mirostat_mu(self._sampler)

    @property
    def adaptive_mean(self):
        """adaptive-p's moving average of the probabilities of the tokens accepted."""
        return lib.oe_sampler_adaptive_mean(self._sampler)

    @property
    def best_needed(self):
        """How many of a row's best logits are enough to sample it without a mask; 0: all (oe_sampler_best_needed)."""
        return lib.oe_sampler_best_needed(self._sampler)

    cdef int _claim(self) except -1:
        """Another thread may come here while the GIL is released; two of them in one sampler would corrupt memory."""
        if self._busy.exchange(1):
            raise SamplingError("this Sampler is in use by another thread; give each thread one of its own (fork)")
        return 0

    def sample(self, logits, mask=None):
        """The next token id for float32 logits [n_vocab] (contiguous buffer); does not accept it.

        mask: contiguous uint32 [ceil(n_vocab / 32)], or None, which allows every token. Bits beyond n_vocab are
        ignored. Raises ShapeError for another length, dtype or layout of either, SamplingError for NaN, +inf, or no
        allowed token above -inf.
        """
        cdef const float[::1] row = checked_row(logits, self.n_vocab)
        cdef const uint32_t[::1] allowed = checked_mask(mask, self.n_vocab)
        cdef lib.oe_sample_job job
        self._claim()
        job.sampler = self._sampler
        job.logits, job.n_known = &row[0], 0
        job.mask = words_of(allowed)
        with nogil:
            lib.oe_sampler_run(&job, 1)
        self._busy.store(0)
        if job.status != lib.OE_SAMPLE_OK:
            raise error_of(&job)
        return job.token

    def candidates(self, logits, mask=None):
        """The distribution of `sample`: {token: probability}, best first. Raises as it does; changes nothing."""
        cdef const float[::1] row = checked_row(logits, self.n_vocab)
        cdef const uint32_t[::1] allowed = checked_mask(mask, self.n_vocab)
        cdef int32_t[::1] ids = array("i", bytes(4 * self.n_vocab))
        cdef double[::1] p = array("d", bytes(8 * self.n_vocab))
        cdef lib.oe_sample_job job
        cdef int32_t n
        self._claim()
        job.sampler = self._sampler
        job.logits, job.n_known = &row[0], 0
        job.mask = words_of(allowed)
        with nogil:
            n = lib.oe_sampler_candidates(&job, &ids[0], &p[0])
        self._busy.store(0)
        if job.status != lib.OE_SAMPLE_OK:
            raise error_of(&job)
        return dict(sorted(((ids[i], p[i]) for i in range(n)), key=lambda pair: (-pair[1], pair[0])))

    def accept(self, token):
        """Adds a token, generated or of the prompt, to the history that the penalties look at.

        Raises TokenizerError for an id outside of the vocabulary.
        """
        cdef int32_t checked = checked_token(token, self.n_vocab)
        self._claim()
        try:
            self._accept_claimed(checked)
        finally:
            self._busy.store(0)

    cdef int _accept_claimed(self, int32_t token) except -1:
        if lib.oe_sampler_accept(self._sampler, &token, 1) != lib.OE_SAMPLE_OK:
            raise NoMemoryError("no memory for a history of one more token")
        return 0

    def accept_many(self, ids):
        """`accept` for each of the ids (any iterable of int, say a prompt); all of them or, on an error, none."""
        cdef const int32_t[::1] tokens = checked_tokens(ids, self.n_vocab)
        cdef Py_ssize_t n = tokens.shape[0]
        if n == 0:
            return
        self._claim()
        cdef lib.oe_sample_status status = lib.oe_sampler_accept(self._sampler, &tokens[0], n)
        self._busy.store(0)
        if status != lib.OE_SAMPLE_OK:
            raise NoMemoryError(f"no memory for a history of {n} more tokens")

    def logprobs(self, logits, token, top=0):
        """TokenLogprobs of `token` and the `top` best tokens: log-softmax of the logits [n_vocab] as they are.

        Independent of params, history and random stream, and there is no mask: log-probabilities are the model's. Under
        a mask, a token that a constraint forced would look certain however improbable the model finds it.
        Natural logarithms, absolute error below 1e-6.
        Raises as `sample` does, TokenizerError for a token outside of the vocabulary, ConfigError for top < 0.
        """
        cdef const float[::1] row = checked_row(logits, self.n_vocab)
        cdef lib.oe_sample_job job
        cdef double logprob = 0
        cdef int32_t n_top = 0, most = checked_top(top, self.n_vocab)
        cdef int32_t[::1] top_id = array("i", bytes(4 * (most + 1)))
        cdef double[::1] top_logprob = array("d", bytes(8 * (most + 1)))
        job.token = checked_token(token, self.n_vocab)
        self._claim()
        job.sampler = self._sampler
        job.logits, job.n_known = &row[0], 0
        with nogil:
            lib.oe_sampler_logprobs(&job, &logprob, most, &top_id[0], &top_logprob[0], &n_top)
        self._busy.store(0)
        if job.status != lib.OE_SAMPLE_OK:
            raise error_of(&job)
        return TokenLogprobs(job.token, logprob, [(top_id[i], top_logprob[i]) for i in range(n_top)])

    def fork(self):
        """A copy with the same parameters, seed, draws and history: both would continue with the same tokens."""
        cdef Sampler twin = Sampler(self.params, self.n_vocab)
        self._claim()
        cdef lib.oe_sampler *copy = lib.oe_sampler_copy(self._sampler)
        self._busy.store(0)
        if copy is NULL:
            raise NoMemoryError(f"no memory for a copy of a sampler over {self.n_vocab} tokens")
        lib.oe_sampler_destroy(twin._sampler)
        twin._sampler = copy
        twin.seed, twin.breakers = self.seed, self.breakers
        return twin

    def reset(self):
        """Back to the state after construction, with the same seed: no draw made, no token accepted."""
        self._claim()
        lib.oe_sampler_reset(self._sampler)
        self._busy.store(0)


def sample_rows(samplers, logits, masks=None, known=None, rows=None):
    """One step for every row: samplers[i] chooses from logits[rows[i]]; the GIL is released once, for all rows.

    logits: contiguous float32 [n, n_columns]; a sampler looks at the first n_vocab <= n_columns of its row. What a row
    gives depends on its own sampler, logits and mask only: it equals
    `samplers[i].sample(logits[rows[i], :n_vocab], masks[i])`. rows: None where there are as many as samplers.
    masks: one for each row (see Sampler; a row may have None), or None. known: likewise int32 ids, whose logits alone
    are above -inf: others are not looked for.
    Returns n entries in order: the token id, or the SamplingError of a row that has none (see Sampler); such a row
    leaves its sampler and the others as they were. Nothing is accepted: see accept_rows.
    Raises ShapeError for another dtype, layout or size, ConfigError when a sampler comes twice (the second row of a
    sequence needs the first one accepted, so it goes into another call), SamplingError when another thread is using
    one; then no row was sampled.
    """
    cdef list owners = checked_list(samplers, Sampler)
    cdef list sizes = _sizes(owners)
    cdef const float[:, ::1] table = checked_table(logits, sizes, rows is None)
    cdef list held = checked_masks(masks, sizes), found = checked_known(known, sizes)
    cdef list chosen = checked_places(range(len(owners)) if rows is None else rows, sizes, table.shape[0])
    cdef const uint32_t[::1] allowed
    cdef const int32_t[::1] ids
    cdef Py_ssize_t i, n = len(owners)
    if n == 0:
        return []
    cdef lib.oe_sample_job *jobs = <lib.oe_sample_job *> malloc(n * sizeof(lib.oe_sample_job))
    if jobs is NULL:
        raise NoMemoryError(f"no memory to sample {n} rows")
    try:
        _claim_all(owners)
        for i in range(n):
            jobs[i].sampler = (<Sampler> owners[i])._sampler
            jobs[i].logits = &table[<Py_ssize_t> chosen[i], 0]
            jobs[i].mask = NULL
            jobs[i].n_known = 0
            if found and found[i] is not None and len(found[i]):
                ids = found[i]
                jobs[i].known, jobs[i].n_known = &ids[0], <int32_t> ids.shape[0]
            if held is not None:
                allowed = held[i]
                jobs[i].mask = words_of(allowed)
        with nogil:
            lib.oe_sampler_run(jobs, n)
        _release(owners, n)
        return [jobs[i].token if jobs[i].status == lib.OE_SAMPLE_OK else error_of(&jobs[i]) for i in range(n)]
    finally:
        free(jobs)


def sample_drafts(samplers, logits, begins, drafts):
    """Verify drafts: samplers[i] chooses from row begins[i], and from the row behind while it drew drafts[i] so far.

    logits: as of `sample_rows`; a draft of k tokens has k + 1 rows. Returns a list of accepted tokens for each: those
    of the draft that were drawn, and the one behind them, or in its place the SamplingError of a row that has none: as
    if `sample` and `accept` were called in turn. A list that there was no memory for holds the NoMemoryError alone.
    Raises as `sample_rows` does, ShapeError for rows out of range, TokenizerError for a draft's token outside of its
    sampler's vocabulary, MemoryError; then no row was sampled.
    """
    cdef list owners = checked_list(samplers, Sampler)
    cdef list sizes = _sizes(owners)
    cdef const float[:, ::1] table = checked_table(logits, sizes, False)
    cdef list first = checked_places(begins, sizes, table.shape[0])
    cdef list guessed = checked_drafts(drafts, first, sizes, table.shape[0])
    cdef list found = [[NoMemoryError("no memory for the tokens of a draft")] for _ in owners]
    cdef Py_ssize_t i, n = len(owners), room = n + sum([len(draft) for draft in guessed])
    cdef const int32_t[::1] draft
    cdef size_t size = (n + 1) * sizeof(lib.oe_draft_job) + room * sizeof(int32_t)
    cdef lib.oe_draft_job *jobs = <lib.oe_draft_job *> calloc(1, size)
    if jobs is NULL:
        raise NoMemoryError(f"no memory to verify {n} drafts")
    cdef int32_t *tokens = <int32_t *> (jobs + n)
    try:
        for i in range(n):
            draft = guessed[i]
            jobs[i].job.sampler = (<Sampler> owners[i])._sampler
            jobs[i].job.logits = &table[<Py_ssize_t> first[i], 0]
            jobs[i].draft = &draft[0] if draft.shape[0] else NULL
            jobs[i].n_draft, jobs[i].stride, jobs[i].tokens = draft.shape[0], table.shape[1], tokens
            tokens += draft.shape[0] + 1
        _claim_all(owners)
        with nogil:
            lib.oe_sampler_verify(jobs, n)
        _release(owners, n)
        for i in range(n):
            try:
                found[i] = tokens_of(&jobs[i])
            except MemoryError:
                pass  # its list has the error
        return found
    finally:
        free(jobs)


def accept_rows(samplers, tokens):
    """`samplers[i].accept(tokens[i])` for every i in one call.

    Raises as `accept` and `sample_rows` do, ShapeError when there are not as many tokens as samplers; then, unless it
    is a NoMemoryError, nothing was accepted.
    """
    cdef list owners = checked_list(samplers, Sampler), ids = list(tokens)
    cdef Py_ssize_t i, n = len(owners)
    if len(ids) != n:
        raise ShapeError(f"expected one token for each of {n} samplers, got {len(ids)}")
    for i in range(n):
        ids[i] = checked_token(ids[i], (<Sampler> owners[i]).n_vocab)
    _claim_all(owners)
    try:
        for i in range(n):
            (<Sampler> owners[i])._accept_claimed(ids[i])
    finally:
        _release(owners, n)


cdef list _sizes(list owners):
    cdef Sampler owner
    return [owner.n_vocab for owner in owners]


cdef int _claim_all(list owners) except -1:
    """All of the samplers or, on an error, none."""
    cdef Py_ssize_t i, first
    for i in range(len(owners)):
        try:
            (<Sampler> owners[i])._claim()
        except SamplingError:
            _release(owners, i)
            first = owners.index(owners[i])
            if first < i:
                raise ConfigError(f"the Sampler of row {first} comes again in row {i}; sample its rows in calls of "
                                  "their own, each token accepted before the next, or fork it") from None
            raise
    return 0


cdef void _release(list owners, Py_ssize_t n) noexcept:
    cdef Py_ssize_t i
    for i in range(n):
        (<Sampler> owners[i])._busy.store(0)
