"""A model's vocabulary as llguidance reads it: the bytes of each token, which are control tokens, which end an answer.

Made once for each engine, when the first request with a format comes, in the thread of its caller: 0.3 s and 50 MB for
128,000 tokens. llguidance holds Python's lock meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, cast

from llguidance import LLTokenizer

__all__ = ["ConstraintVocabulary", "TextTokenizer", "make_vocabulary"]

REMEMBERED = 4096
"""Forced texts whose tokens are kept: names of properties come again with every object."""


class TextTokenizer(Protocol):
    """The methods of the model's tokenizer that are called here."""

    @property
    def n_vocab(self) -> int:
        """Number of tokens."""

    @property
    def eog_ids(self) -> frozenset[int]:
        """All ids that end a generation."""

    def token_bytes(self, token_id: int, *, skip_special: bool = True) -> bytes:
        """The bytes of the token in the output."""

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, continues: bool = False) -> str:
        """The text of ids."""

    def is_steering(self, token_id: int) -> bool:
        """Whether the token is no text: a grammar names it (`<tool_call>`), and text does not match it."""

    def encode(
        self, text: str | bytes, *, add_special: bool = True, parse_special: bool = True, continues: bool = False
    ) -> list[int]:
        """Token ids of a text."""


class _Wrapper:
    """The attributes and the call by which llguidance reads a tokenizer (its TokenizerWrapper)."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: TextTokenizer, n_vocab: int, ends: list[int]) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str | bytes, list[int]] = {}
        self.eos_token_id = ends[0]
        self.tokens = [tokenizer.token_bytes(i, skip_special=False) for i in range(n_vocab)]
        self.special_token_ids = [i for i in range(n_vocab) if tokenizer.is_steering(i)]
        self._special = frozenset(self.special_token_ids)
        self._by_bytes = {data: i for i, data in reversed(list(enumerate(self.tokens))) if i not in self._special}
        self._longest = max(map(len, self.tokens))
        self._writes_ascii = all(bytes([code]) in self._by_bytes for code in range(0x20, 0x7F))
        if ends[0] == n_vocab:
            self.tokens.append(b"<no end token>")
            self.special_token_ids.append(n_vocab)

    def __call__(self, text: str | bytes) -> list[int]:
        """The tokens that a forced text gets: those that the model's tokenizer makes of it."""
        ids = self._known.get(text)
        if ids is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[text] = ids = self._encode(text.encode() if isinstance(text, str) else bytes(text))
        return ids

    def writes(self, text: str) -> bool:
        """Whether there are tokens for all bytes of a text."""
        if text.isascii() and self._writes_ascii:
            return True
        data = text.encode(errors="surrogatepass")
        return sum(len(self.tokens[i]) for i in self._longest_first(data)) == len(data)

    def _encode(self, data: bytes) -> list[int]:
        ids = self._tokenizer.encode(data, add_special=False, parse_special=False, continues=True)
        known = not self._special.intersection(ids) and all(i < len(self.tokens) for i in ids)
        if known and b"".join(self.tokens[i] for i in ids) == data:
            return ids
        # A vocabulary that normalizes text, or has a marker among the text: the longest token at each place.
        return self._longest_first(data)

    def _longest_first(self, data: bytes) -> list[int]:
        ids, at = [], 0
        while at < len(data):
            for end in range(min(len(data), at + self._longest), at, -1):
                found = self._by_bytes.get(data[at:end])
                if found is not None:
                    ids.append(found)
                    at = end
                    break
            else:
                break  # a byte that no token has: nothing can be forced from here on
        return ids


class ConstraintVocabulary(NamedTuple):
    """A vocabulary as the matcher reads it."""

    tokenizer: LLTokenizer
    writes: Callable[[str], bool]
    """Whether there are tokens for all bytes of a text."""


def make_vocabulary(tokenizer: TextTokenizer, n_vocab: int) -> ConstraintVocabulary:
    """llguidance's view of the first `n_vocab` tokens.

    A vocabulary without a token that ends an answer gets one that cannot come: the answer ends where its grammar does.
    """
    ends = sorted(i for i in tokenizer.eog_ids if i < n_vocab) or [n_vocab]
    wrapper = _Wrapper(tokenizer, n_vocab, ends)
    made = LLTokenizer(cast(Any, wrapper), n_vocab=len(wrapper.tokens), eos_token=ends)
    return ConstraintVocabulary(made, wrapper.writes)
