"""The C side of texts before and around their tokens: special tokens, normalization, texts of a vocabulary.

Objects are immutable, so any number of threads may share one.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DATA, PyUnicode_GET_LENGTH, PyUnicode_KIND, PyUnicode_New
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from ollama_engine.errors import ModelFormatError, NoMemoryError

cdef extern from "Python.h":
    Py_UCS4 PyUnicode_MAX_CHAR_VALUE(object text)

cdef extern from "tokenizer/charsmap.h" nogil:
    ctypedef struct oe_charsmap:
        const uint32_t *units
        size_t n_units
        const char *texts
        size_t n_texts
    ctypedef struct oe_buffer:
        char *data
        size_t size
    int oe_charsmap_apply(const oe_charsmap *table, const char *text, size_t size, oe_buffer *out)

cdef extern from "tokenizer/text_trie.h" nogil:
    ctypedef struct oe_text_trie:
        pass
    ctypedef struct oe_trie_match:
        size_t start
        size_t length
        int32_t id
    void oe_text_trie_init(oe_text_trie *trie)
    void oe_text_trie_free(oe_text_trie *trie)
    int oe_text_trie_put(oe_text_trie *trie, const char *key, size_t length, int32_t id)
    int oe_text_trie_next(const oe_text_trie *trie, const char *text, size_t size, size_t start, oe_trie_match *match)

cdef enum:
    SHORT = 4096  # bytes that are searched without giving up Python's lock; see _merge.pyx
    MATCHES = 256


cdef int check(int status) except -1:
    if status < 0:
        raise NoMemoryError("no memory for the tokenizer")
    return 0


def only_texts(list values not None):
    """Whether all of them are str."""
    for value in values:
        if type(value) is not str:
            return False
    return True


cdef void put_text(void *target, int width, Py_ssize_t at, const void *source, int given, Py_ssize_t n) noexcept nogil:
    """Copy `n` characters of `given` bytes each behind `at` characters of `width` bytes, which is no less."""
    cdef Py_ssize_t i
    if width == given:
        memcpy(<char *>target + at * width, source, n * width)
    elif width == 2:
        for i in range(n):
            (<uint16_t *>target)[at + i] = (<const uint8_t *>source)[i]
    elif given == 2:
        for i in range(n):
            (<uint32_t *>target)[at + i] = (<const uint16_t *>source)[i]
    else:
        for i in range(n):
            (<uint32_t *>target)[at + i] = (<const uint8_t *>source)[i]


def join_texts(list texts not None):
    """`"".join(texts)`, while other threads run.

    Python's own holds the lock until all is copied, and one character beyond U+FFFF gives every other one four bytes.
    No text may leave the list meanwhile. Raises TypeError.
    """
    cdef Py_ssize_t size = 0, at = 0, n
    cdef Py_UCS4 largest = 0
    cdef object text, joined  # of a class that is derived from str, too
    cdef void *target
    cdef const void *source
    cdef int width, given
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"expected str, got {type(text).__name__}")
        size += PyUnicode_GET_LENGTH(text)
        largest = max(largest, PyUnicode_MAX_CHAR_VALUE(text))
    if size == 0:
        return ""
    joined = PyUnicode_New(size, largest)  # no other code has a reference yet, so it may be written
    target, width = PyUnicode_DATA(joined), PyUnicode_KIND(joined)
    for text in texts:
        source, given, n = PyUnicode_DATA(text), PyUnicode_KIND(text), PyUnicode_GET_LENGTH(text)
        if n <= SHORT:
            put_text(target, width, at, source, given, n)
        else:
            with nogil:
                put_text(target, width, at, source, given, n)
        at += n
    return joined


def find_texts(list texts not None, set wanted not None):
    """{text: its last index in `texts`} for the wanted texts that occur.

    A vocabulary is large and few texts are wanted, so the first character rules most of them out.
    """
    cdef dict last = {}
    cdef set firsts = {text[:1] for text in wanted}
    cdef bint[128] begins
    cdef Py_ssize_t i
    cdef Py_UCS4 first
    cdef str text
    for i in range(128):
        begins[i] = chr(i) in firsts
    for i in range(len(texts)):
        text = texts[i]
        first = text[0] if len(text) else 0
        if (first >= 128 or begins[first]) and text in wanted:
            last[text] = i
    return last


cdef class CharsMapper:
    """Replaces the keys of a double array `units` by `texts`, which a zero byte ends. See csrc/tokenizer/charsmap.h."""

    cdef oe_charsmap table
    cdef const uint32_t[::1] units
    cdef bytes texts

    def __cinit__(self, const uint32_t[::1] units not None, bytes texts not None):
        if units.shape[0] == 0 or not texts.endswith(b"\0"):
            raise ModelFormatError("a table of replacements without keys, or whose last text does not end")
        self.units, self.texts = units, texts
        self.table.units, self.table.n_units = &units[0], units.shape[0]
        self.table.texts, self.table.n_texts = PyBytes_AS_STRING(texts), PyBytes_GET_SIZE(texts)

    def apply(self, bytes text not None):
        """The text with the longest key at each place replaced. Raises ModelFormatError for a key without a text."""
        cdef oe_buffer out
        cdef const char *start = PyBytes_AS_STRING(text)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(text)
        cdef int status
        memset(&out, 0, sizeof(out))
        try:
            with nogil:
                status = oe_charsmap_apply(&self.table, start, size, &out)
            if status > 0:
                raise ModelFormatError("tokenizer.ggml.precompiled_charsmap is broken: a key stands for no text; "
                                       "convert the model again")
            check(status)
            return out.data[:out.size] if out.size else b""
        finally:
            free(out.data)


cdef class TextTrie:
    """Finds given byte strings in a text: leftmost first, the longest at each place."""

    cdef oe_text_trie trie

    def __cinit__(self, list entries not None):
        """`entries` holds (text, id) with text: non-empty bytes."""
        cdef bytes key
        oe_text_trie_init(&self.trie)
        for key, id in entries:
            if not key:
                raise ModelFormatError(f"token {id} has no text")
            check(oe_text_trie_put(&self.trie, PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), id))

    def __dealloc__(self):
        oe_text_trie_free(&self.trie)

    cdef int find_some(self, const char *text, size_t size, size_t first, oe_trie_match *matches) noexcept nogil:
        """Up to MATCHES of them; how many."""
        cdef int n = 0
        while n < MATCHES and oe_text_trie_next(&self.trie, text, size, first, &matches[n]):
            first = matches[n].start + matches[n].length
            n += 1
        return n

    def find_all(self, bytes text not None):
        """Matches that do not overlap, in order: a list of (start, end, id) in bytes."""
        cdef const char *start = PyBytes_AS_STRING(text)
        cdef size_t size = PyBytes_GET_SIZE(text), at = 0
        cdef oe_trie_match matches[MATCHES]
        cdef int n = MATCHES, i
        cdef list spans = []
        while n == MATCHES:
            if size <= SHORT:
                n = self.find_some(start, size, at, matches)
            else:
                with nogil:
                    n = self.find_some(start, size, at, matches)
            for i in range(n):
                at = matches[i].start + matches[i].length
                spans.append((matches[i].start, at, matches[i].id))
        return spans
