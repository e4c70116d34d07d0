"""NgramIndex: where the end of a text came before, found as LZ77 finds matches: by a table of its last tokens.

    place         0  1  2  3  4  5  6
    tokens        7  3  9  7  3  5  ...
    before       -1 -1 -1 -1  1 -1        the place before it where the same pair of tokens ended; -1: none
    table        (7, 3) -> 4, (3, 9) -> 2 ...   where each pair ended last
"""

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport int32_t, uint32_t, uint64_t

cdef enum:
    C_SHORTEST = 2
    C_LONGEST = 32
    TRIED = 16  # most places that are compared, the latest first
    FIRST = 64  # tokens that there is room for at first; the table has twice as many entries

SHORTEST = C_SHORTEST
LONGEST = C_LONGEST


def agreements(tuple indexes not None, list tokens not None):
    """For each token but the first two, how far these texts agree that it comes behind the two before it.

    Of the last TRIED places of that pair in each index, as many go on so: 0: at most a quarter, 1: at most half,
    2: all, but there is one or none to ask, 3: most of them, 4: all of two or more. Places before negative tokens are
    not asked.
    """
    cdef Py_ssize_t i
    return [agreement(indexes, tokens[i - 2], tokens[i - 1], tokens[i]) for i in range(2, len(tokens))]


def chances_of(tuple indexes not None, list tokens not None, int length, list levels not None, list chances not None,
               double least):
    """For each token but the first two, the chance that it and all of them before it come; those below `least` end it.

    length: of the match that the guesses follow. How sure one is, 64 times its `agreements` plus the length of its
    match, is at least one of the rising `levels`, which have these chances.
    """
    cdef Py_ssize_t i, level, n = len(levels)
    cdef int sureness
    cdef double chance = 1.0
    if not 0 < n == len(chances):
        raise ValueError(f"expected a chance for each of some levels, got {n} levels and {len(chances)} chances")
    found = []
    for i in range(2, len(tokens)):
        sureness = 64 * agreement(indexes, tokens[i - 2], tokens[i - 1], tokens[i]) + min(length + i - 2, C_LONGEST)
        level = 0
        while level + 1 < n and <int>levels[level + 1] <= sureness:
            level += 1
        chance *= <double>chances[level]
        if chance < least:
            break
        found.append(chance)
    return found


cdef int agreement(tuple indexes, int32_t first, int32_t second, int32_t third) except -1:
    """See `agreements`."""
    cdef Py_ssize_t alike = 0, asked = 0
    cdef NgramIndex index
    for index in indexes:
        with cython.critical_section(index):
            index.ask(first, second, third, &alike, &asked)
    if alike == asked:
        return 4 if asked > 1 else 2
    return 0 if 4 * alike <= asked else 1 if 2 * alike <= asked else 3


cdef class NgramIndex:
    """Tokens, and where each pair of neighbours came last: 16 to 32 bytes a token."""

    cdef int32_t *tokens
    cdef int32_t *before
    cdef int32_t *table
    cdef Py_ssize_t size, room

    def __cinit__(self):
        self.tokens = self.before = self.table = NULL
        self.size = self.room = 0

    def __dealloc__(self):
        PyMem_Free(self.tokens)
        PyMem_Free(self.before)
        PyMem_Free(self.table)

    def __len__(self):
        return self.size

    @cython.critical_section
    def part(self, Py_ssize_t begin, Py_ssize_t end):
        """The tokens of [begin, end), as a list; those outside of the text are left out."""
        return [self.tokens[i] for i in range(max(0, begin), min(self.size, end))]

    @cython.critical_section
    def extend(self, object tokens not None):
        """Append tokens, each an int of 32 bits. Raises OverflowError for others, with those before it appended."""
        cdef int32_t token
        for token in tokens:
            if self.size == self.room:
                self.grow()
            self.tokens[self.size] = token
            self.before[self.size] = -1
            self.size += 1
            if self.size > 1:
                self.enter(self.size - 1)

    @cython.critical_section
    def find(self, list end not None, *, bint within):
        """(place behind the match, its length) of the longest match of the last tokens of a text; of equal ones the
        latest. None where fewer than SHORTEST are the same. At most LONGEST tokens are compared.

        `within`: the text is this index's own, whose end is no match.
        """
        cdef int32_t wanted[C_LONGEST]
        cdef Py_ssize_t n = min(len(end), <Py_ssize_t>C_LONGEST), i, place, length, best = 0, at = -1
        if n < C_SHORTEST or self.size < C_SHORTEST:
            return None
        for i in range(n):
            wanted[i] = end[len(end) - 1 - i]  # the last token first
        place = self.table[self.slot(wanted[1], wanted[0])]
        if within and place == self.size - 1:
            place = self.before[place]
        for _ in range(TRIED):
            if place < 0 or best == C_LONGEST:
                break
            length = C_SHORTEST
            while length < n and length <= place and self.tokens[place - length] == wanted[length]:
                length += 1
            if length > best and place + 1 < self.size:
                best, at = length, place + 1
            place = self.before[place]
        return None if at < 0 else (at, best)

    cdef void ask(self, int32_t first, int32_t second, int32_t third, Py_ssize_t *alike, Py_ssize_t *asked) noexcept:
        """Count the last places of a pair that go on, and those of them that go on with this third token."""
        cdef Py_ssize_t place = self.table[self.slot(first, second)] if self.size > 1 else -1
        for _ in range(TRIED):
            if place < 0:
                return
            if place + 1 < self.size and self.tokens[place + 1] >= 0:
                asked[0] += 1
                alike[0] += self.tokens[place + 1] == third
            place = self.before[place]

    cdef int enter(self, Py_ssize_t place) except -1:
        """Note that a pair ended at this place."""
        cdef Py_ssize_t slot = self.slot(self.tokens[place - 1], self.tokens[place])
        self.before[place] = self.table[slot]
        self.table[slot] = <int32_t>place
        return 0

    cdef Py_ssize_t slot(self, int32_t first, int32_t second) noexcept:
        """The entry of a pair, or an empty one for it. The table is never more than half full."""
        cdef uint64_t pair = (<uint64_t><uint32_t>first << 32) | <uint32_t>second
        cdef Py_ssize_t mask = 2 * self.room - 1
        cdef Py_ssize_t slot = <Py_ssize_t>((pair * <uint64_t>0x9E3779B97F4A7C15) >> 32) & mask
        cdef int32_t place = self.table[slot]
        while place >= 0 and (self.tokens[place] != second or self.tokens[place - 1] != first):
            slot = (slot + 1) & mask
            place = self.table[slot]
        return slot

    cdef int grow(self) except -1:
        cdef Py_ssize_t room = 2 * self.room if self.room else FIRST, i, place
        cdef int32_t *table
        if room > 1 << 30:
            raise OverflowError("an index of n-grams holds 2^30 tokens")
        self.tokens = <int32_t *>grown(self.tokens, room)
        self.before = <int32_t *>grown(self.before, room)
        table = <int32_t *>PyMem_Malloc(2 * room * sizeof(int32_t))
        if table == NULL:
            raise MemoryError
        PyMem_Free(self.table)
        self.table, self.room = table, room
        for i in range(2 * room):
            table[i] = -1
        for place in range(1, self.size):
            table[self.slot(self.tokens[place - 1], self.tokens[place])] = <int32_t>place
        return 0


cdef void *grown(void *memory, Py_ssize_t room) except NULL:
    cdef void *more = PyMem_Realloc(memory, room * sizeof(int32_t))
    if more == NULL:
        raise MemoryError
    return more
