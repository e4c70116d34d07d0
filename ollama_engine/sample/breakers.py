"""Sequence breakers of DRY: texts, and the tokens of a vocabulary that have them or begin them.

A token that holds a breaker breaks by itself. One that ends with the beginning of a breaker does so where the tokens of
the breaker's rest come after it. Source: P. E. Weidmann, text-generation-webui, pull request 5677; the tails follow
koboldcpp's pull request 982, as llama.cpp's do.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

__all__ = ["BreakerFinder", "SequenceBreakers"]

_MAX_BYTES = 40
"""As in llama.cpp: what is behind these bytes of a breaker, or tokens of its rest, is not looked at."""
_MAX_REST = 20
_KEPT = 16
"""Sets of breakers that a finder remembers."""


class SequenceBreakers(NamedTuple):
    """Breakers as token ids, for csrc/sample/dry.h."""

    n_vocab: int
    single: array[int]
    """uint32 bitmap of the tokens that break by themselves."""
    first: array[int]
    """int32: first tokens of breakers of several tokens, ascending; and a last one of no meaning."""
    start: array[int]
    """int32: the other tokens of breaker i are rest[start[i] : start[i + 1]]."""
    rest: array[int]

    @classmethod
    def of(cls, n_vocab: int, sequences: Sequence[Sequence[int]]) -> SequenceBreakers:
        """From token sequences, none of them empty."""
        single = array("I", bytes(4 * ((n_vocab + 31) // 32)))
        first, start, rest = array("i"), array("i", [0]), array("i")
        for sequence in sorted(set(map(tuple, sequences))):
            if len(sequence) == 1:
                single[sequence[0] // 32] |= 1 << sequence[0] % 32
            else:
                first.append(sequence[0])
                rest.extend(sequence[1:])
                start.append(len(rest))
        # So that each has a first element whose address can be taken.
        first.append(-1)
        rest.append(-1)
        return cls(n_vocab, single, first, start, rest)


class BreakerVocabulary(Protocol):
    """The methods of a tokenizer that a finder calls."""

    def token_bytes(self, token_id: int, *, skip_special: bool) -> bytes:
        """The bytes of a token in the output."""

    def encode(self, text: bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        """Text to tokens."""


class BreakerFinder:
    """Finds breakers in one vocabulary, of whose tokens the first n_vocab count; threads may share it.

    The first search lays the bytes of all tokens end to end, which takes most of its 0.2 to 0.4 s for 128,000 of them.
    Later ones take milliseconds, and those for texts that came before nothing.
    """

    def __init__(self, n_vocab: int, vocabulary: BreakerVocabulary) -> None:
        self._n_vocab = n_vocab
        self._vocabulary = vocabulary
        self._text: tuple[bytes, list[int]] | None = None
        self._made: dict[tuple[str, ...], SequenceBreakers] = {}

    def find(self, texts: Sequence[str]) -> SequenceBreakers:
        """The breakers for these texts."""
        key = tuple(texts)
        breakers = self._made.get(key)
        if breakers is None:
            sequences = [sequence for text in key for sequence in self._sequences(text)]
            breakers = SequenceBreakers.of(self._n_vocab, sequences)
            if len(self._made) >= _KEPT:
                self._made = {}
            self._made[key] = breakers
        return breakers

    def _sequences(self, text: str) -> Iterator[tuple[int, ...]]:
        breaker = text.encode()[:_MAX_BYTES]
        whole = {token for token, _ in self._places(breaker)}
        yield from ((token,) for token in whole)
        for cut in range(1, len(breaker)):
            ends = [token for token, is_end in self._places(breaker[:cut]) if is_end and token not in whole]
            if ends:
                ids = self._vocabulary.encode(breaker[cut:], add_special=False, parse_special=False)
                rest = ids[:_MAX_REST]
                yield from ((token, *rest) for token in ends)

    def _places(self, part: bytes) -> Iterator[tuple[int, bool]]:
        """Each token that has these bytes, and whether it ends with them; once for each time."""
        text, starts = self._laid_out()
        at = text.find(part)
        while at >= 0:
            token = bisect_right(starts, at) - 1
            end = at + len(part)
            if end <= starts[token + 1]:
                yield token, end == starts[token + 1]
            at = text.find(part, at + 1)

    def _laid_out(self) -> tuple[bytes, list[int]]:
        """The bytes of all tokens, and where each begins; the last is the end."""
        if self._text is None:
            pieces = [self._vocabulary.token_bytes(token, skip_special=False) for token in range(self._n_vocab)]
            starts = [0]
            for piece in pieces:
                starts.append(starts[-1] + len(piece))
            self._text = b"".join(pieces), starts
        return self._text
