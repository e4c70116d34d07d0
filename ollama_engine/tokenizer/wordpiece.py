"""WordPiece, `tokenizer.ggml.model` bert: splits cleaned text into words, and words into the longest known pieces.

It follows BERT's own tokenizer (Devlin et al. 2018) and Hugging Face's. GGUF marks pieces that start a word with
U+2581; BERT marks the other pieces, with "##". Characters newer than Hugging Face's tables, which are of Unicode 8, may
be treated differently.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

import regex

from ollama_engine.errors import TokenizerError
from ollama_engine.tokenizer.checkpoint import AT_ONCE, Checkpoint
from ollama_engine.tokenizer.vocab import TokenType, Vocabulary

__all__ = ["WordPieceModel"]

START = "▁"
MAX_WORD = 100
"""Most characters of a word; a longer word becomes the unknown token."""
CACHED_WORDS = 1 << 15

ASCII_PUNCTUATION = r"!-/:-@\[-`{-~"
# Hugging Face's ranges of ideographs. Other sources begin the fifth at U+2B820; here U+2B820 to U+2B91F are left out.
IDEOGRAPHS = (
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b81f\U0002b920-\U0002ceaf"
    "\U0002f800-\U0002fa1f"
)

_ASCII_WORDS = re.compile(rf"[0-9A-Za-z]+|[{ASCII_PUNCTUATION}]")
_ASCII_DROPPED = {code: None for code in (*range(32), 127) if chr(code) not in "\t\n\r"}
_WORDS = regex.compile(rf"[^\s\p{{P}}{ASCII_PUNCTUATION}]+|[\p{{P}}{ASCII_PUNCTUATION}]")
_DROPPED = regex.compile(r"(?![\t\n\r])[\p{Cc}\p{Cf}\p{Co}\p{Cs}\ufffd]")
_IDEOGRAPH = regex.compile(f"[{IDEOGRAPHS}]")
_ACCENT = regex.compile(r"\p{Mn}+")
# Characters that begin a word, or are none, whatever stands before them: a text can be cut there. Neither normalization
# nor lower case changes them.
_BORDER = re.compile(rf"[ \t\n\r{ASCII_PUNCTUATION}\u4e00-\u9fff]")


class WordPieceModel:
    """Text between special tokens -> ids, and a token's text -> bytes. See `base.TextModel`.

    Control, format and private characters, U+FFFD and bytes that are not UTF-8 are dropped, as BERT does.
    """

    def __init__(self, vocab: Vocabulary) -> None:
        made = (TokenType.NORMAL, TokenType.USER_DEFINED)
        pieces = {text: id_ for id_, (text, kind) in enumerate(zip(vocab.texts, vocab.types, strict=True))
                  if kind in made}  # fmt: skip
        self._starts = {text[1:]: id_ for text, id_ in pieces.items() if text.startswith(START) and len(text) > 1}
        self._others = {text: id_ for text, id_ in pieces.items() if not text.startswith(START) or len(text) == 1}
        self._longest = max(map(len, pieces), default=0)
        self._unknown = vocab.unknown_id
        self._lowercase = vocab.lowercase
        self._strip_accents = vocab.strip_accents
        # A cache, since texts repeat their words. Two threads may compute the same entry, which does no harm.
        self._ids_of = lru_cache(maxsize=CACHED_WORDS)(self._ids_of_word)

    keeps_all = False

    def encode(self, text: str, *, prefix: bool, checkpoint: Checkpoint = None) -> list[int]:
        """`prefix` has no effect: a special token separates words like any other border."""
        ids: list[int] = []
        for part in _parts(text):
            ids += [id_ for word in self.words(part) for id_ in self._ids_of(word)]
            if checkpoint is not None and len(text) > AT_ONCE:
                checkpoint()
        return ids

    def words(self, text: str) -> list[str]:
        """The units that are looked up: words, single punctuation marks and single ideographs, without white space."""
        if text.isascii():
            text = text.translate(_ASCII_DROPPED)
            return _ASCII_WORDS.findall(text.lower() if self._lowercase else text)
        text = _IDEOGRAPH.sub(r" \g<0> ", _DROPPED.sub("", text))
        if self._strip_accents:
            text = _ACCENT.sub("", unicodedata.normalize("NFD", text))
        if self._lowercase:
            # Character by character: str.lower() of a whole word turns a final sigma into another letter.
            text = "".join(map(str.lower, text)) if "Σ" in text else text.lower()
        found: list[str] = _WORDS.findall(text)
        return found

    def _ids_of_word(self, word: str) -> tuple[int, ...]:
        """Greedy: the longest piece that fits, repeatedly. The whole word is unknown where no piece fits."""
        ids = []
        at, pieces = 0, self._starts
        while at < len(word) <= MAX_WORD:
            for end in range(min(len(word), at + self._longest), at, -1):
                id_ = pieces.get(word[at:end])
                if id_ is not None:
                    break
            else:
                return self._unknown_word(word)
            ids.append(id_)
            at, pieces = end, self._others
        return tuple(ids) or self._unknown_word(word)

    def _unknown_word(self, word: str) -> tuple[int, ...]:
        if self._unknown is None:
            raise TokenizerError(f"the vocabulary has neither pieces for {word!r:.60} nor a token for unknown words")
        return (self._unknown,)

    def special_text(self, text: str) -> str:
        """The text of a user-defined token as it appears in input and output."""
        return text

    def normal_bytes(self, text: str) -> bytes:
        """The bytes of output for a normal token: a piece that starts a word, or a mark, has a space before it."""
        return text.replace(START, " ", 1).encode("utf-8", "surrogateescape")


def _parts(text: str) -> Iterator[str]:
    """A long text, cut where its words stay the same."""
    at = 0
    while at < len(text):
        border = _BORDER.search(text, at + AT_ONCE)
        end = len(text) if border is None else border.start()
        yield text[at:end]
        at = end
