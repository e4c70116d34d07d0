"""SentencePiece unigram, which GGUF calls "t5": T5, XLM-R, and embedding models derived from XLM-R."""

from __future__ import annotations

import re
import string

import numpy as np

from ollama_engine.errors import ModelFormatError
from ollama_engine.tokenizer._merge import UnigramSearch
from ollama_engine.tokenizer.charsmap import Charsmap
from ollama_engine.tokenizer.checkpoint import Checkpoint
from ollama_engine.tokenizer.spm import MarkedSpaces, byte_ids
from ollama_engine.tokenizer.vocab import TokenType, Vocabulary

__all__ = ["UnigramModel"]

PUNCTUATION = dict.fromkeys(map(ord, string.punctuation))

UNKNOWN_PENALTY = 10.0
"""Score of an unknown character below that of the worst piece (SentencePiece's constant)."""


class UnigramModel(MarkedSpaces):
    """Text between special tokens -> ids, and a token's text -> bytes. See `base.TextModel`.

    Text is normalized first: `charsmap` replaces characters, and `squeeze` removes spaces at the ends and merges runs
    of spaces. A character without a piece is spelled in byte pieces where the vocabulary has them, as in SentencePiece;
    llama.cpp uses the unknown token.
    """

    def __init__(self, vocab: Vocabulary, charsmap: bytes, *, squeeze: bool) -> None:
        if vocab.scores is None:
            raise ModelFormatError("tokenizer.ggml.scores is missing; tokenizer model 't5' needs it")
        if not np.isfinite(vocab.scores).all():
            raise ModelFormatError("tokenizer.ggml.scores holds numbers that are not finite")
        made = (vocab.types == TokenType.NORMAL).astype(np.uint8)
        spelled = byte_ids(vocab.texts)
        is_byte = vocab.types[spelled] == TokenType.BYTE  # a vocabulary may hold such texts as ordinary pieces
        spelled = np.where((spelled >= 0) & is_byte, spelled, -1).astype(np.int32)
        scores = vocab.scores.astype(np.float64)
        worst = float(scores[made > 0].min(initial=0.0))
        unknown = -1 if vocab.unknown_id is None else vocab.unknown_id
        self.keeps_all = False  # normalizing drops characters, and runs of unknown ones are one token
        self._search = UnigramSearch(vocab.texts, scores, made, spelled, unknown, worst - UNKNOWN_PENALTY)
        self._charsmap = Charsmap(charsmap) if charsmap else None
        self._squeeze = squeeze
        self._canonical = vocab.canonical
        self._add_space_prefix = vocab.add_space_prefix

    def encode(self, text: str, *, prefix: bool, checkpoint: Checkpoint = None) -> list[int]:
        """`prefix`: the text starts the input or follows a special token."""
        if self._canonical:
            text = canonical(text)
        if self._charsmap is not None:
            text = self._charsmap.apply(text)
        if self._squeeze:
            while "  " in text:
                text = text.replace("  ", " ")
            text = text.rstrip(" ") if self._canonical else text.strip(" ")
        if text and prefix and self._add_space_prefix and not self._canonical:
            text = " " + text
        return self._search.encode(self.marked(text), checkpoint)


def canonical(text: str) -> str:
    """A text as SigLIP was trained with: small letters, no punctuation of ASCII, single spaces, and one before it.

    Source: `canonicalize_text` of transformers' SiglipTokenizer, which puts U+2581 before the text first.
    """
    text = ("\u2581" + text.replace("\u2581", " ")).lower().translate(PUNCTUATION)
    return re.sub(r"\s+", " ", text).strip()
