"""The tokenizer that callers hold: special tokens, BOS and EOS around a text model, and the way back to text."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from operator import index
from typing import Protocol

import numpy as np

from ollama_engine.errors import TokenizerError
from ollama_engine.tokenizer._merge import TextTrie
from ollama_engine.tokenizer.detokenizer import Detokenizer
from ollama_engine.tokenizer.vocab import TokenType, Vocabulary

__all__ = ["TextModel", "Tokenizer"]

# Unicode's White_Space; str.strip() would also take U+001C to U+001F.
WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"  # noqa: E501
# Not part of the output unless asked for.
HIDDEN = (TokenType.CONTROL, TokenType.UNKNOWN)


class TextModel(Protocol):
    """How one kind of vocabulary treats ordinary text."""

    def encode(self, text: str, *, prefix: bool) -> list[int]:
        """Ids of a text without special tokens. `prefix`: it starts the input or follows a special token."""

    def special_text(self, text: str) -> str:
        """How the text of a user-defined token looks in input and output."""

    def normal_bytes(self, text: str) -> bytes:
        """What a normal token of this text adds to the output."""


class Tokenizer:
    """Text to token ids and back, as one vocabulary defines it. Immutable: threads may share it.

    Special tokens are found leftmost first, the longest at each place, as in Hugging Face's tokenizers; llama.cpp goes
    through them by length, which differs only where two of them overlap.
    """

    def __init__(self, vocab: Vocabulary, model: TextModel) -> None:
        self._vocab = vocab
        self._model = model
        self._types = vocab.types.tobytes()
        self._always, self._with_special = self._tries()
        # What each token adds to the output, filled on use. An entry is a constant, so a lost race costs nothing.
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
        """End of sequence: the first of them. Generation ends at any of `eog_ids`."""
        return self._vocab.eos_id

    @property
    def eog_ids(self) -> frozenset[int]:
        """All ids that end a generation."""
        return self._vocab.eog_ids

    @property
    def add_bos(self) -> bool:
        """Whether `encode` with `add_special` puts BOS first."""
        return self._vocab.add_bos

    @property
    def add_eos(self) -> bool:
        """Whether `encode` with `add_special` puts EOS last."""
        return self._vocab.add_eos

    def token_text(self, token_id: int) -> str:
        """The text in the vocabulary as it is stored: for logs, not for output."""
        return self._vocab.texts[self._check(token_id)]

    def is_control(self, token_id: int) -> bool:
        """Whether the token steers the model and is no part of the output (types control and unknown)."""
        return self._types[self._check(token_id)] in HIDDEN

    # -- text to ids ---------------------------------------------------------------------------------------------------

    def encode(
        self, text: str | bytes, *, add_special: bool = True, parse_special: bool = True, continues: bool = False
    ) -> list[int]:
        """Token ids of a text.

        `add_special` adds BOS and EOS where the vocabulary asks for them; a prompt that is encoded in pieces wants it
        for the first piece only. `parse_special` turns the text of control tokens into these tokens; without it such
        text is ordinary text (user-defined tokens are found either way). Bytes, and lone surrogates as
        `errors="surrogateescape"` makes them, need not be UTF-8: what is not is encoded byte by byte. `continues`: the
        text goes on in the middle of another one, so no space is put before it where the vocabulary asks for that.

        A byte-pair vocabulary that has no token for a byte leaves it out, as the original tokenizers do, with a logged
        warning. Raises TokenizerError for other lone surrogates, and when a SentencePiece vocabulary has neither a
        byte piece nor an unknown piece for a character.
        """
        if isinstance(text, (bytes, bytearray, memoryview)):
            data = bytes(text)
            text = data.decode("utf-8", "surrogateescape")
        else:
            data = _to_bytes(text)
        ids: list[int] = []
        if add_special and self._vocab.add_bos and self._vocab.bos_id is not None:
            ids.append(self._vocab.bos_id)
        matches = (self._with_special if parse_special else self._always).find_all(data)
        if not matches:
            if text:
                ids += self._model.encode(text, prefix=not continues)
        else:
            self._encode_between(data, matches, ids, continues=continues)
        if add_special and self._vocab.add_eos and self._vocab.eos_id is not None:
            ids.append(self._vocab.eos_id)
        return ids

    def _encode_between(
        self, data: bytes, matches: list[tuple[int, int, int]], ids: list[int], *, continues: bool
    ) -> None:
        at = 0
        strip_left = False
        for start, end, id_ in [*matches, (len(data), len(data), -1)]:
            text = data[at:start].decode("utf-8", "surrogateescape")
            if strip_left:
                text = text.lstrip(WHITE_SPACE)
            if id_ in self._vocab.lstrip_ids:
                text = text.rstrip(WHITE_SPACE)
            if text:
                ids += self._model.encode(text, prefix=at > 0 or not continues)
            if id_ >= 0:
                ids.append(id_)
            at = end
            strip_left = id_ in self._vocab.rstrip_ids

    # -- ids to text ---------------------------------------------------------------------------------------------------

    def token_bytes(self, token_id: int, *, skip_special: bool = True) -> bytes:
        """What the token adds to the output; b"" for control tokens unless `skip_special` is false.

        One token need not be whole characters. Raises TokenizerError for an id outside of the vocabulary.
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
        """The text of ids, with U+FFFD for what is not UTF-8.

        `skip_special` leaves control tokens out. A SentencePiece vocabulary puts a space before every text, so one
        leading space is removed again; `continues` keeps it, for ids that go on after a prompt. Spaces before
        punctuation stay (llama.cpp removes them for some vocabularies): the text of encoded text is that text.

        Raises TokenizerError for an id outside of the vocabulary, or one that is no whole number.
        """
        return self.decode_bytes(ids, skip_special=skip_special, continues=continues).decode("utf-8", "replace")

    def detokenizer(self, *, skip_special: bool = True, continues: bool = False) -> Detokenizer:
        """The same as `decode`, id by id."""
        return Detokenizer(
            self.token_bytes if skip_special else partial(self.token_bytes, skip_special=False),
            strip_space=self._vocab.add_space_prefix and not continues,
        )

    # -- inside --------------------------------------------------------------------------------------------------------

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
            return b""  # unused and undefined tokens: padding of the vocabulary
        return text.encode("utf-8", "surrogateescape")

    def _tries(self) -> tuple[TextTrie, TextTrie]:
        """(always found, found with parse_special)."""
        user_defined: list[tuple[bytes, int]] = []
        special: list[tuple[bytes, int]] = []
        kinds = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
        for id_ in map(int, np.flatnonzero(np.isin(self._vocab.types, kinds))):
            text = self._vocab.texts[id_]
            if self._types[id_] == TokenType.USER_DEFINED:
                text = self._model.special_text(text)
                user_defined.append((text.encode("utf-8", "surrogateescape"), id_))
            special.append((text.encode("utf-8", "surrogateescape"), id_))
        return TextTrie(user_defined), TextTrie(special)


def _whole_numbers(ids: Iterable[int]) -> list[int]:
    try:
        return [index(id_) for id_ in ids]
    except TypeError as error:
        raise TokenizerError(f"token ids are an iterable of whole numbers: {error}") from None


def _to_bytes(text: str) -> bytes:
    if not isinstance(text, str):
        raise TokenizerError(f"expected str or bytes, got {type(text).__name__}")
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"character {error.start} of the text is the lone surrogate U+{ord(text[error.start]):04X}; "
            "send the whole character, or raw bytes"
        ) from error


def _byte_piece(text: str) -> bytes:
    """The byte of "<0x0A>"; b"" for a byte token with another text."""
    try:
        return bytes([int(text[3:5], 16)]) if text.startswith("<0x") and len(text) == 6 else b""
    except ValueError:
        return b""
