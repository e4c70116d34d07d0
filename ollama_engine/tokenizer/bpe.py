"""Byte-pair encoding: `tokenizer.ggml.model` gpt2, gemma4 and whitespace."""

from __future__ import annotations

import unicodedata
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ollama_engine.errors import ModelFormatError, naming_no_memory
from ollama_engine.tokenizer._merge import BpeMerger
from ollama_engine.tokenizer.checkpoint import AT_ONCE, Checkpoint
from ollama_engine.tokenizer.pretokenizer_table import Rule
from ollama_engine.tokenizer.vocab import Vocabulary

if TYPE_CHECKING:
    from ollama_engine.tokenizer.pretokenizer import PreTokenizer

__all__ = ["BpeModel", "gpt2_alphabet", "lower"]

END_OF_WORD = "</w>"
END_BYTE = "\udcff"
"""The byte 0xFF, which UTF-8 does not have, as `surrogateescape` spells it."""
END = "\xff"
"""The same in GPT-2's alphabet."""


class BpeModel:
    """Text between special tokens -> ids, and a token's text -> bytes. See `base.TextModel`."""

    def __init__(self, vocab: Vocabulary, merges: list[str] | None) -> None:
        if vocab.spec is None:
            raise ModelFormatError("a byte-pair vocabulary needs a pre-tokenizer")
        # Some Kimi K2 files have no merges; their vocabulary then works as whole pieces and single bytes.
        if merges is None and vocab.spec.name != "kimi-k2":
            raise ModelFormatError(f"tokenizer.ggml.merges is missing; tokenizer model {vocab.model!r} needs it")
        self._spec = vocab.spec
        self._lowercase = vocab.lowercase
        plain = vocab.ordinary.astype(np.uint8)
        unknown = -1 if vocab.unknown_id is None or vocab.spec.byte_level else vocab.unknown_id
        texts, merges = (_ends_marked if vocab.spec.end_of_word else lambda *both: both)(vocab.texts, merges or [])
        self._merger = BpeMerger(texts, merges, plain, vocab.spec.byte_level, unknown)
        bytes_there = set(gpt2_alphabet()) <= {ord(text) for text in vocab.texts if len(text) == 1}
        drops = any(stage.rule is Rule.KEEP for stage in vocab.spec.stages)
        self.keeps_all = vocab.spec.byte_level and bytes_there and not drops
        self._byte_of = {code: byte for byte, code in enumerate(gpt2_alphabet())}

    @cached_property
    def _pretokenizer(self) -> PreTokenizer:
        """Compiled for the first text, not on load: importing the regex library takes longer than reading a header."""
        with naming_no_memory():
            from ollama_engine.tokenizer.pretokenizer import PreTokenizer  # noqa: PLC0415 (see above)

            return PreTokenizer(self._spec)

    def encode(self, text: str, *, prefix: bool, checkpoint: Checkpoint = None) -> list[int]:
        """`prefix` has no meaning here: only SentencePiece puts a space before a text."""
        spec = self._spec
        if spec.escape_spaces:
            text = text.replace(" ", "▁")
        if spec.end_of_word:
            text = unicodedata.normalize("NFC", text)
        if self._lowercase:
            text = lower(text)
        ids: list[int] = []
        for pieces in self._pretokenizer.batches(text):
            if spec.end_of_word:
                pieces = [piece + END_BYTE for piece in pieces]  # noqa: PLW2901
            ids += self._merger.encode(pieces, spec.ignore_merges, spec.whole_newlines, checkpoint)
            if checkpoint is not None and len(text) > AT_ONCE:
                checkpoint()
        return ids

    def special_text(self, text: str) -> str:
        """The text of a user-defined token as it appears in input and output."""
        return text.replace("▁", " ") if self._spec.escape_spaces else text

    def normal_bytes(self, text: str) -> bytes:
        """The bytes of output for a normal token with this vocabulary text."""
        if self._spec.end_of_word and text.endswith(END_OF_WORD):
            return self.normal_bytes(text.removesuffix(END_OF_WORD)) + b" "
        if not self._spec.byte_level:
            return self.special_text(text).encode("utf-8", "surrogateescape")
        try:
            return bytes([self._byte_of[ord(c)] for c in text])
        except KeyError:  # an added token in plain text, not in GPT-2's spelling
            return text.encode("utf-8", "surrogateescape")


def _ends_marked(texts: list[str], merges: list[str]) -> tuple[list[str], list[str]]:
    """A vocabulary with "</w>" in it as one of bytes: a byte that UTF-8 does not have stands for it.

    Merges of that byte with the one before come first: in the original both are one symbol from the beginning.
    """
    ends = [f"{chr(code)} {END}" for code in gpt2_alphabet() if chr(code) != END]
    marked = [_marked(text) if END not in text else f"[{text}]" for text in texts]
    return marked, [*ends, *(" ".join(map(_marked, merge.split(" "))) for merge in merges if END not in merge)]


def _marked(text: str) -> str:
    return text.removesuffix(END_OF_WORD) + END if text.endswith(END_OF_WORD) else text


def lower(text: str) -> str:
    """Character by character: str.lower() of a whole word turns a final sigma into another letter."""
    parts = (text[at : at + AT_ONCE] for at in range(0, len(text), AT_ONCE))
    return "".join(["".join(map(str.lower, part)) for part in parts])


def gpt2_alphabet() -> list[int]:
    """The code point that spells each byte: printable Latin-1 spells itself, the rest follow from U+0100 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(0x100, 0x200))
    return [byte if byte in printable else next(others) for byte in range(256)]
