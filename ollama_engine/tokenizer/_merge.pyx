"""The C side of the tokenizers: byte-pair and SentencePiece merging, and unigram search.

Objects are immutable, and each call has its own scratch memory, so any number of threads may share an object. Other
threads run while a long text is encoded, and its `checkpoint`, a function or None, is called every few milliseconds;
what it raises, or a signal's handler, ends the call.
"""

import logging

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from ollama_engine.errors import ModelFormatError, NoMemoryError, TokenizerError

logger = logging.getLogger(__name__)

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef extern from "tokenizer/id_list.h" nogil:
    ctypedef struct oe_id_list:
        int32_t *ids
        size_t size
        size_t dropped
        uint8_t dropped_byte

cdef extern from "tokenizer/checkpoint.h" nogil:
    ctypedef struct oe_checkpoint:
        int (*call)(void *context) noexcept nogil
        void *context
    enum:
        OE_STOPPED
    int oe_checkpoint_pass(oe_checkpoint *checkpoint)

cdef extern from "tokenizer/pair_merge.h" nogil:
    ctypedef struct oe_scratch:
        oe_checkpoint checkpoint
    void oe_scratch_free(oe_scratch *scratch)

cdef extern from "tokenizer/bpe.h" nogil:
    ctypedef struct oe_bpe:
        int32_t unknown
    int oe_bpe_init(oe_bpe *bpe, int32_t n_vocab, uint32_t n_merges, int byte_level)
    void oe_bpe_free(oe_bpe *bpe)
    ctypedef struct oe_bpe_text:
        const char *start
        uint32_t length
    enum:
        OE_BPE_BATCH
    int oe_bpe_put_tokens(oe_bpe *bpe, const oe_bpe_text *texts, int n, int32_t id, const uint8_t *whole)
    int oe_bpe_put_merges(oe_bpe *bpe, const oe_bpe_text *texts, int n, uint32_t rank)
    int oe_bpe_finish(oe_bpe *bpe)
    int oe_bpe_encode(const oe_bpe *bpe, oe_scratch *scratch, const char *piece, size_t size, int whole,
                      oe_id_list *ids)

cdef extern from "tokenizer/spm.h" nogil:
    ctypedef struct oe_spm:
        int32_t bytes[256]
        int32_t unknown
    int oe_spm_init(oe_spm *spm, int32_t n_vocab)
    void oe_spm_free(oe_spm *spm)
    int oe_spm_put_piece(oe_spm *spm, const char *text, uint32_t length, int32_t id, uint32_t rank, int unused)
    int oe_spm_encode(const oe_spm *spm, oe_scratch *scratch, const char *text, size_t size, oe_id_list *ids)

cdef extern from "tokenizer/unigram.h" nogil:
    ctypedef struct oe_unigram:
        double unknown_score
        int32_t bytes[256]
        int32_t unknown
    int oe_unigram_init(oe_unigram *model, int32_t n_vocab)
    void oe_unigram_free(oe_unigram *model)
    int oe_unigram_put_piece(oe_unigram *model, const char *text, size_t length, int32_t id, double score)
    int oe_unigram_encode(const oe_unigram *model, const char *text, size_t size, oe_checkpoint *checkpoint,
                          oe_id_list *ids)

cdef enum:
    MAX_TEXT = 1 << 30  # symbols carry 32-bit offsets
    SHORT = 4096  # bytes that are encoded without giving up Python's lock; who gives it up may wait 5 ms to get it back
    AT_ONCE = 1 << 15  # ids that become Python's in one go, which takes less than a millisecond


cdef class Calls:
    """The function that a checkpoint calls, and the error that it raised."""

    cdef object function
    cdef object error

    def __cinit__(self, function):
        self.function = function

    cdef void watch(self, oe_checkpoint *checkpoint):
        checkpoint.call = call
        checkpoint.context = <void *>self


cdef int call(void *context) noexcept with gil:
    calls = <Calls>context
    try:
        PyErr_CheckSignals()
        if calls.function is not None:
            calls.function()
    except BaseException as error:
        calls.error = error
        return 1
    return 0


cdef bytes to_bytes(str text):
    return text.encode("utf-8", "surrogateescape")


cdef struct Span:
    const char *start
    Py_ssize_t size


cdef Span utf8(str text, list kept) except *:
    """The UTF-8 that Python caches for a str. With lone surrogates there is none: it is made, and `kept` holds it."""
    cdef Span span
    cdef bytes raw
    try:
        span.start = PyUnicode_AsUTF8AndSize(text, &span.size)
    except UnicodeEncodeError:  # lone surrogates, which stand for invalid bytes
        raw = to_bytes(text)
        kept.append(raw)
        span.start, span.size = PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw)
    return span


cdef int check(int status, Calls calls=None) except -1:
    """Raise the exception for a C function's status."""
    if status == OE_STOPPED and calls is not None:
        raise calls.error
    if status < 0:
        raise NoMemoryError("no memory for the tokenizer")
    if status > 0:
        raise TokenizerError(f"byte 0x{status - 1:02x} has no token in this vocabulary; remove it from the text")
    return 0


cdef int check_size(Py_ssize_t size) except -1:
    if size > MAX_TEXT:
        raise TokenizerError(f"text of {size} bytes; one encode call takes at most {MAX_TEXT}")
    return 0


cdef list to_list(oe_id_list *ids):
    cdef size_t i, first
    cdef list listed = []
    if ids.size <= AT_ONCE:
        return [ids.ids[i] for i in range(ids.size)]
    for first in range(0, ids.size, AT_ONCE):
        listed += [ids.ids[i] for i in range(first, min(first + AT_ONCE, ids.size))]
        with nogil:  # for threads that wait for Python's lock
            pass
    return listed


cdef int take(list texts, Py_ssize_t first, oe_bpe_text *batch, list kept) except -1:
    """Fill `batch` with the texts from `first` on; returns how many it took."""
    cdef int n = <int>min(<Py_ssize_t>OE_BPE_BATCH, len(texts) - first), i
    cdef Span span
    kept.clear()
    for i in range(n):
        span = utf8(texts[first + i], kept)
        batch[i] = oe_bpe_text(span.start, <uint32_t>span.size)
    return n


cdef class BpeMerger:
    """Byte-pair encoding over `tokens` (id order) and `merges` (rank order, "left right").

    `plain[id]` is nonzero for tokens that text may become without merging. csrc/tokenizer/bpe.h has the two flavours.
    `unknown` (an id or -1) stands for a character that the raw flavour can spell neither as a token nor in bytes.
    Raises ModelFormatError for a merge without two parts, MemoryError.
    """

    cdef oe_bpe bpe

    def __cinit__(self, list tokens not None, list merges not None, const uint8_t[::1] plain not None,
                  bint byte_level, int32_t unknown):
        cdef Py_ssize_t n_vocab = len(tokens), n_merges = len(merges), i
        cdef oe_bpe_text batch[OE_BPE_BATCH]
        cdef list kept = []
        cdef int n, status
        if plain.shape[0] != n_vocab:
            raise ModelFormatError(f"{plain.shape[0]} token types for {n_vocab} tokens")
        check(oe_bpe_init(&self.bpe, <int32_t>n_vocab, <uint32_t>n_merges, byte_level))
        for i in range(0, n_vocab, OE_BPE_BATCH):
            n = take(tokens, i, batch, kept)
            check(oe_bpe_put_tokens(&self.bpe, batch, n, <int32_t>i, &plain[i]))
        for i in range(0, n_merges, OE_BPE_BATCH):
            n = take(merges, i, batch, kept)
            status = oe_bpe_put_merges(&self.bpe, batch, n, <uint32_t>i)
            if status > 0:
                i += n - status
                raise ModelFormatError(f"tokenizer.ggml.merges[{i}] is {merges[i]!r}; expected two parts and a space")
            check(status)
        check(oe_bpe_finish(&self.bpe))
        self.bpe.unknown = unknown

    def __dealloc__(self):
        oe_bpe_free(&self.bpe)

    cdef int encode_all(self, const Span *spans, Py_ssize_t n, bint whole, bint whole_newlines, oe_scratch *scratch,
                        oe_id_list *ids) noexcept nogil:
        cdef Py_ssize_t i
        cdef bint at_once
        cdef int status = 0
        for i in range(n):
            at_once = whole or (whole_newlines and spans[i].size > 0 and spans[i].start[0] == c"\n")
            status = oe_bpe_encode(&self.bpe, scratch, spans[i].start, spans[i].size, at_once, ids)
            if status < 0:
                break
        return status

    def encode(self, list pieces not None, bint whole, bint whole_newlines=False, checkpoint=None):
        """Ids of the pieces, in order. `whole`: a piece that is a token's text becomes that token without merging.

        `whole_newlines`: so do pieces that begin with a newline. A byte that has no token is left out, as the original
        tokenizers do, and logged: some vocabularies lack control characters and bytes that UTF-8 does not use.
        """
        cdef oe_scratch scratch
        cdef oe_id_list ids
        cdef list kept = []
        cdef Calls calls = Calls(checkpoint)
        cdef Py_ssize_t n = len(pieces), size = 0, i
        cdef Span *spans = <Span *>malloc(max(1, n) * sizeof(Span))
        cdef int status
        memset(&scratch, 0, sizeof(scratch))
        memset(&ids, 0, sizeof(ids))
        calls.watch(&scratch.checkpoint)
        try:
            check(0 if spans != NULL else -1)
            for i in range(n):
                spans[i] = utf8(pieces[i], kept)
                check_size(spans[i].size)
                size += spans[i].size
            if size <= SHORT:
                status = self.encode_all(spans, n, whole, whole_newlines, &scratch, &ids)
            else:
                with nogil:
                    status = self.encode_all(spans, n, whole, whole_newlines, &scratch, &ids)
            check(status, calls)
            if ids.dropped:
                logger.warning("%d bytes of the text have no token here and are left out; the last is 0x%02x",
                               ids.dropped, ids.dropped_byte)
            return to_list(&ids)
        finally:
            free(spans)
            oe_scratch_free(&scratch)
            free(ids.ids)


cdef class SpmMerger:
    """SentencePiece BPE over `pieces` (id order).

    `ranks[id]` orders the pieces, lowest merges first. `kinds[id]`: 0 = never made from text, 1 = normal, 2 = unused
    (made on the way, split at the end). `byte_ids[b]` is the piece of byte b or -1, `unknown` an id or -1.
    """

    cdef oe_spm spm

    def __cinit__(self, list pieces not None, const uint32_t[::1] ranks not None, const uint8_t[::1] kinds not None,
                  const int32_t[::1] byte_ids not None, int32_t unknown):
        cdef Py_ssize_t n_vocab = len(pieces), i
        cdef list kept = []
        cdef Span span
        if ranks.shape[0] != n_vocab or kinds.shape[0] != n_vocab or byte_ids.shape[0] != 256:
            raise ModelFormatError(f"{ranks.shape[0]} scores and {kinds.shape[0]} types for {n_vocab} pieces")
        check(oe_spm_init(&self.spm, <int32_t>n_vocab))
        for i in range(n_vocab):
            if kinds[i]:
                span = utf8(pieces[i], kept)
                check(oe_spm_put_piece(&self.spm, span.start, <uint32_t>span.size, <int32_t>i, ranks[i], kinds[i] == 2))
        for i in range(256):
            self.spm.bytes[i] = byte_ids[i]
        self.spm.unknown = unknown

    def __dealloc__(self):
        oe_spm_free(&self.spm)

    def encode(self, bytes text not None, checkpoint=None):
        """Ids of UTF-8 text whose spaces are U+2581 already. Raises TokenizerError for a byte without a piece."""
        cdef oe_scratch scratch
        cdef oe_id_list ids
        cdef const char *start = PyBytes_AS_STRING(text)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(text)
        cdef Calls calls = Calls(checkpoint)
        cdef int status
        check_size(size)
        memset(&scratch, 0, sizeof(scratch))
        memset(&ids, 0, sizeof(ids))
        calls.watch(&scratch.checkpoint)
        try:
            if size <= SHORT:
                status = oe_spm_encode(&self.spm, &scratch, start, size, &ids)
            else:
                with nogil:
                    status = oe_spm_encode(&self.spm, &scratch, start, size, &ids)
            check(status, calls)
            return to_list(&ids)
        finally:
            oe_scratch_free(&scratch)
            free(ids.ids)


cdef class UnigramSearch:
    """Finds the split of a text into `pieces` (id order) with the highest sum of `scores`.

    `made[id]` is nonzero for pieces that text may become. A character without a piece scores
    `unknown_score`; it becomes byte pieces where `byte_ids` has them, and `unknown` (an id or -1) otherwise.
    """

    cdef oe_unigram model

    def __cinit__(self, list pieces not None, const double[::1] scores not None, const uint8_t[::1] made not None,
                  const int32_t[::1] byte_ids not None, int32_t unknown, double unknown_score):
        cdef Py_ssize_t n_vocab = len(pieces), i
        cdef bytes raw
        if scores.shape[0] != n_vocab or made.shape[0] != n_vocab or byte_ids.shape[0] != 256:
            raise ModelFormatError(f"{scores.shape[0]} scores and {made.shape[0]} types for {n_vocab} pieces")
        check(oe_unigram_init(&self.model, <int32_t>n_vocab))
        for i in range(n_vocab):
            raw = to_bytes(pieces[i])
            if made[i] and raw:
                check(oe_unigram_put_piece(&self.model, PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw), <int32_t>i,
                                           scores[i]))
        for i in range(256):
            self.model.bytes[i] = byte_ids[i]
        self.model.unknown = unknown
        self.model.unknown_score = unknown_score

    def __dealloc__(self):
        oe_unigram_free(&self.model)

    def encode(self, bytes text not None, checkpoint=None):
        """Ids of UTF-8 text whose spaces are U+2581 already. Raises TokenizerError for a byte without a piece."""
        cdef oe_id_list ids
        cdef const char *start = PyBytes_AS_STRING(text)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(text)
        cdef Calls calls = Calls(checkpoint)
        cdef oe_checkpoint watched
        cdef int status
        check_size(size)
        memset(&ids, 0, sizeof(ids))
        memset(&watched, 0, sizeof(watched))
        calls.watch(&watched)
        try:
            if size <= SHORT:
                status = oe_unigram_encode(&self.model, start, size, &watched, &ids)
            else:
                with nogil:
                    status = oe_unigram_encode(&self.model, start, size, &watched, &ids)
            check(status, calls)
            return to_list(&ids)
        finally:
            free(ids.ids)
