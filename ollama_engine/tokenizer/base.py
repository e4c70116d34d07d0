"""Tokenizer, the public class: adds special tokens, BOS and EOS to a text model, and decodes ids to text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from operator import index
from typing import Protocol

import numpy as np

from ollama_engine.errors import TokenizerError
from ollama_engine.tokenizer._texts import TextTrie
from ollama_engine.tokenizer.checkpoint import Checkpoint
from ollama_engine.tokenizer.detokenizer import Detokenizer
from ollama_engine.tokenizer.utf8 import to_bytes
from ollama_engine.tokenizer.vocab import TokenType, Vocabulary

__all__ = ["TextModel", "Tokenizer"]

# Unicode's White_Space; str.strip() would also take U+001C to U+001F.
WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"  # noqa: E501
MATCHES_AT_ONCE = 512
"""Special tokens of a text between two checkpoints."""
# Types of tokens that are not part of the output by default.
HIDDEN = (TokenType.CONTROL, TokenType.UNKNOWN)


class TextModel(Protocol):
    """The part that differs by kind of vocabulary (BPE, SentencePiece, unigram, WordPiece): ordinary text."""

    keeps_all: bool
    """Whether each character of a text is in some token, or is spelled by several."""

    def encode(self, text: str, *, prefix: bool, checkpoint: Checkpoint = None) -> list[int]:
        """Ids of a text without special tokens. `prefix`: it starts the input or follows a special token."""

    def special_text(self, text: str) -> str:
        """The text of a user-defined token as it appears in input and output."""

    def normal_bytes(self, text: str) -> bytes:
        """The bytes of output for a normal token with this vocabulary text."""


class Tokenizer:
    """Text to token ids and back, as one vocabulary defines it. Immutable: threads may share it.

    Special tokens match leftmost first, and longest first at one place, as in Hugging Face's tokenizers. llama.cpp
    searches for the longest token first, which differs only where two of them overlap.
    """

    def __init__(self, vocab: Vocabulary, model: TextModel) -> None:
        self._vocab = vocab
        self._model = model
        self.doubles_end = vocab.doubles_end
        self._types = vocab.types.tobytes()
        self._steering = frozenset(map(int, np.flatnonzero(np.isin(vocab.types, HIDDEN)))) | vocab.guarded_ids
        self._always, self._with_special = self._tries()
        # Output bytes of each token, filled on use. An entry never changes, so two threads may both compute it.
        self._visible: dict[int, bytes] = {}
        self._all: dict[int, bytes] = {}

    # -- facts ---------------------------------------------------------------------------------------------------------

    @property
    def n_vocab(self) -> int:
        """Number of tokens; ids are 0 ... n_vocab - 1. A model's output may have more columns (padding)."""
        return len(self._vocab.texts)

    @property
    def bos_id(self) -> int | None:
        """The token that begins a sequence, or None where the vocabulary names none."""
        return self._vocab.bos_id

    @property
    def eos_id(self) -> int | None:
        """The token that ends a sequence (EOS), or None. Generation ends at any of `eog_ids`, not only here."""
        return self._vocab.eos_id

    @property
    def eog_ids(self) -> frozenset[int]:
        """All ids that end a generation."""
        return self._vocab.eog_ids

    @property
    def suppressed_ids(self) -> frozenset[int]:
        """The tokens that an answer never has (`suppress_tokens`)."""
        return self._vocab.suppressed_ids

    @cached_property
    def longest_token(self) -> int | None:
        """Most characters that a token stands for; None where some may vanish, such as white space."""
        vanishes = not self._model.keeps_all or self._vocab.lstrip_ids or self._vocab.rstrip_ids
        return None if vanishes else max(map(len, self._vocab.texts), default=1) or 1

    @property
    def add_bos(self) -> bool:
        """Whether `encode` with `add_special` puts BOS first."""
        return self._vocab.add_bos

    @property
    def add_eos(self) -> bool:
        """Whether `encode` with `add_special` puts EOS last."""
        return self._vocab.add_eos

    def token_text(self, token_id: int) -> str:
        """The raw text of a token in the vocabulary: for logs, not for output."""
        return self._vocab.texts[self._check(token_id)]

    def is_control(self, token_id: int) -> bool:
        """Whether the token is left out of the output: types control and unknown."""
        return self._types[self._check(token_id)] in HIDDEN

    def is_steering(self, token_id: int) -> bool:
        """Whether text becomes this token only where control tokens are parsed: those, <think>, <|channel|> ..."""
        return self._check(token_id) in self._steering

    @cached_property
    def steering_tokens(self) -> Mapping[str, int]:
        """Ids of the tokens that are steering (`is_steering`), by their texts."""
        return {self._vocab.texts[id_]: id_ for id_ in sorted(self._steering)}

    # -- text to ids ---------------------------------------------------------------------------------------------------

    def encode(
        self, text: str | bytes, *, add_special: bool = True, parse_special: bool = True, continues: bool = False,
        checkpoint: Checkpoint = None,
    ) -> list[int]:  # fmt: skip
        """Token ids of a text.

        `add_special` adds BOS and EOS where the vocabulary asks for them; for a prompt in several pieces, set it for
        the first piece only. `parse_special` turns the text of control tokens into these tokens; without it, such text
        is ordinary text. User-defined tokens that are not steering (`is_steering`) are found either way. `continues`:
        the text goes on where another one ended, so that a SentencePiece vocabulary puts no space before it.

        `text` need not be valid UTF-8: pass bytes, or a str with lone surrogates as `errors="surrogateescape"` makes
        them. Invalid bytes are encoded one by one. A byte-pair vocabulary without a token for a byte leaves that byte
        out, as the original tokenizers do, and logs a warning. Raises TokenizerError for other lone surrogates, and
        when a SentencePiece vocabulary has neither a byte piece nor an unknown piece for a character.

        Other threads run while a long text is encoded. `checkpoint` is called every few milliseconds then, and what it
        raises, or a signal's handler, ends the call.
        """
        data = bytes(text) if isinstance(text, (bytes, bytearray, memoryview)) else to_bytes(text)
        matches = (self._with_special if parse_special else self._always).find_all(data)
        ids = self._encode_between(data, matches, checkpoint, continues=continues)
        return self._around(ids, add_special=add_special)

    def encode_parts(
        self, parts: Sequence[tuple[str, bool]], *, add_special: bool = True, checkpoint: Checkpoint = None
    ) -> list[int]:
        """Token ids of a text in parts (text, parse_special).

        The same ids as for the joined text, however it is split, with one exception: a control token needs all its
        characters in parts with `parse_special`. `checkpoint` and errors are as in `encode`.
        """
        data = b"".join(to_bytes(text) for text, _ in parts)
        spans = _parsed_spans(parts)
        matches = self._with_special.find_all(data)
        if any(id_ in self._steering and not _lies_in(start, end, spans) for start, end, id_ in matches):
            matches = self._matches_within(data, spans)
        return self._around(self._encode_between(data, matches, checkpoint), add_special=add_special)

    def steering_texts(self, text: str) -> list[tuple[int, int]]:
        """Where a text holds what are steering tokens if they are parsed: [begin, end) in characters."""
        data = to_bytes(text)
        places, at, characters = [], 0, 0
        for begin, end, id_ in self._with_special.find_all(data):
            if id_ in self._steering:
                first = characters + len(data[at:begin].decode("utf-8", "surrogateescape"))
                at, characters = end, first + len(data[begin:end].decode("utf-8", "surrogateescape"))
                places.append((first, characters))
        return places

    def _matches_within(self, data: bytes, spans: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
        """Control tokens of the spans; between them, tokens that are found in any text."""
        steering = [
            (begin + start, begin + end, id_)
            for begin, stop in spans
            for start, end, id_ in self._with_special.find_all(data[begin:stop])
            if id_ in self._steering
        ]
        matches, at = [], 0
        for start, end, id_ in [*steering, (len(data), len(data), -1)]:
            matches += [(at + s, at + e, other) for s, e, other in self._always.find_all(data[at:start])]
            matches += [(start, end, id_)] if id_ >= 0 else []
            at = end
        return matches

    def _around(self, ids: list[int], *, add_special: bool) -> list[int]:
        if not add_special:
            return ids
        before = [self._vocab.bos_id] if self._vocab.add_bos and self._vocab.bos_id is not None else []
        after = [self._vocab.eos_id] if self._vocab.add_eos and self._vocab.eos_id is not None else []
        ids[:0] = before  # in place: a copy of millions of ids takes long, with Python's lock held
        ids += after
        return ids

    def _encode_between(
        self, data: bytes, matches: list[tuple[int, int, int]], checkpoint: Checkpoint, *, continues: bool = False
    ) -> list[int]:
        ids: list[int] = []
        at = 0
        strip_left = False
        for number, (start, end, id_) in enumerate([*matches, (len(data), len(data), -1)], 1):
            if checkpoint is not None and number % MATCHES_AT_ONCE == 0:
                checkpoint()
            text = data[at:start].decode("utf-8", "surrogateescape")
            if strip_left:
                text = text.lstrip(WHITE_SPACE)
            if id_ in self._vocab.lstrip_ids:
                text = text.rstrip(WHITE_SPACE)
            if text:
                ids += self._model.encode(text, prefix=at > 0 or not continues, checkpoint=checkpoint)
            if id_ >= 0:
                ids.append(id_)
            at = end
            strip_left = id_ in self._vocab.rstrip_ids
        return ids

    # -- ids to text ---------------------------------------------------------------------------------------------------

    def token_bytes(self, token_id: int, *, skip_special: bool = True) -> bytes:
        """The bytes that the token adds to the output; b"" for control tokens unless `skip_special` is false.

        A token may hold only part of a character. Raises TokenizerError for an id outside of the vocabulary.
        """
        cache = self._visible if skip_special else self._all
        data = cache.get(token_id)
        if data is None:
            data = b"" if skip_special and self.is_control(token_id) else self._render(self._check(token_id))
            cache[token_id] = data
        return data

    def decode_bytes(self, ids: Iterable[int], *, skip_special: bool = True, continues: bool = False) -> bytes:
        """The exact bytes of the output; see `decode`."""
        data = b"".join(self.token_bytes(id_, skip_special=skip_special) for id_ in _whole_numbers(ids))
        return data.removeprefix(b" ") if self._vocab.add_space_prefix and not continues else data

    def decode(self, ids: Iterable[int], *, skip_special: bool = True, continues: bool = False) -> str:
        """The text of ids, with U+FFFD for invalid UTF-8.

        `skip_special` leaves control tokens out. A SentencePiece vocabulary puts a space before every text, so one
        leading space is removed again; `continues` keeps it, for ids that follow a prompt. Spaces before punctuation
        stay, so that decoding reverses encoding; llama.cpp removes them for some vocabularies.

        Raises TokenizerError for an id outside of the vocabulary, or one that is no whole number.
        """
        return self.decode_bytes(ids, skip_special=skip_special, continues=continues).decode("utf-8", "replace")

    def detokenizer(self, *, skip_special: bool = True, continues: bool = False) -> Detokenizer:
        """A decoder for a stream of ids: `decode`, one id at a time."""
        return Detokenizer(
            self.token_bytes if skip_special else partial(self.token_bytes, skip_special=False),
            strip_space=self._vocab.add_space_prefix and not continues,
        )

    # -- internals -----------------------------------------------------------------------------------------------------

    def _check(self, token_id: int) -> int:
        if not 0 <= token_id < len(self._vocab.texts):
            raise TokenizerError(f"token id {token_id} is outside of the vocabulary (0 ... {self.n_vocab - 1})")
        return token_id

    def _render(self, token_id: int) -> bytes:
        text = self._vocab.texts[token_id]
        kind = self._types[token_id]
        if kind == TokenType.NORMAL:
            return self._model.normal_bytes(text)
        if kind == TokenType.BYTE:
            return _byte_piece(text)
        if kind == TokenType.USER_DEFINED:
            text = self._model.special_text(text)
        elif kind not in HIDDEN:
            return b""  # unused and undefined tokens pad the vocabulary
        return text.encode("utf-8", "surrogateescape")

    def _tries(self) -> tuple[TextTrie, TextTrie]:
        """(tokens found always, tokens found with `parse_special`)."""
        user_defined: list[tuple[bytes, int]] = []
        special: list[tuple[bytes, int]] = []
        kinds = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
        for id_ in map(int, np.flatnonzero(np.isin(self._vocab.types, kinds))):
            text = self._vocab.texts[id_]
            if self._types[id_] == TokenType.USER_DEFINED:
                text = self._model.special_text(text)
                if id_ not in self._steering:
                    user_defined.append((text.encode("utf-8", "surrogateescape"), id_))
            special.append((text.encode("utf-8", "surrogateescape"), id_))
        return TextTrie(user_defined), TextTrie(special)


def _parsed_spans(parts: Sequence[tuple[str, bool]]) -> list[tuple[int, int]]:
    """The bytes of parts with parse_special; neighbours are one span."""
    spans: list[tuple[int, int]] = []
    end = 0
    for text, parse_special in parts:
        begin, end = end, end + len(to_bytes(text))
        if parse_special and begin < end:
            begin = spans.pop()[0] if spans and spans[-1][1] == begin else begin
            spans.append((begin, end))
    return spans


def _lies_in(start: int, end: int, spans: list[tuple[int, int]]) -> bool:
    """Whether one of the spans, which ascend, holds all of it."""
    at = bisect_right(spans, start, key=lambda span: span[0]) - 1
    return at >= 0 and end <= spans[at][1]


def _whole_numbers(ids: Iterable[int]) -> list[int]:
    try:
        return [index(id_) for id_ in ids]
    except TypeError as error:
        raise TokenizerError(f"token ids are an iterable of whole numbers: {error}") from None


def _byte_piece(text: str) -> bytes:
    """The byte of "<0x0A>"; b"" for a byte token with another text."""
    try:
        return bytes([int(text[3:5], 16)]) if text.startswith("<0x") and len(text) == 6 else b""
    except ValueError:
        return b""
