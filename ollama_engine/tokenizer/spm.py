"""SentencePiece BPE, which GGUF calls "llama" (`tokenizer.ggml.model`): pairs merge by score, not by rank."""

from __future__ import annotations

import numpy as np

from ollama_engine.errors import ModelFormatError
from ollama_engine.tokenizer._merge import SpmMerger
from ollama_engine.tokenizer.bpe import lower
from ollama_engine.tokenizer.checkpoint import Checkpoint
from ollama_engine.tokenizer.vocab import TokenType, Vocabulary

__all__ = ["MarkedSpaces", "SpmModel", "byte_ids"]


class MarkedSpaces:
    """The part of SentencePiece's models whose vocabularies write spaces as "▁"; see `base.TextModel`."""

    def marked(self, text: str) -> bytes:
        """A text as its pieces are spelled, in UTF-8."""
        return text.replace(" ", "▁").encode("utf-8", "surrogateescape")

    def special_text(self, text: str) -> str:
        """The text of a user-defined token as it appears in input and output."""
        return text.replace("▁", " ")

    def normal_bytes(self, text: str) -> bytes:
        """The bytes of output for a normal token with this vocabulary text."""
        return text.replace("▁", " ").encode("utf-8", "surrogateescape")


class SpmModel(MarkedSpaces):
    """Text between special tokens -> ids, and a token's text -> bytes. See `base.TextModel`.

    As in SentencePiece, merging never makes a control, unknown or byte piece, and unused pieces are split again;
    llama.cpp accepts any piece. An invalid UTF-8 byte becomes its own byte piece only; llama.cpp consumes the bytes
    behind it, too.
    """

    def __init__(self, vocab: Vocabulary) -> None:
        if vocab.scores is None:
            raise ModelFormatError("tokenizer.ggml.scores is missing; tokenizer model 'llama' needs it")
        if np.isnan(vocab.scores).any():
            raise ModelFormatError("tokenizer.ggml.scores holds NaN")
        ranks = np.unique(-vocab.scores, return_inverse=True)[1].astype(np.uint32)
        kinds = np.where(vocab.types == TokenType.UNUSED, 2, vocab.ordinary).astype(np.uint8)
        spelled = byte_ids(vocab.texts)
        unknown = -1 if vocab.unknown_id is None else vocab.unknown_id
        kinds[spelled[spelled >= 0]] = 0
        self.keeps_all = True
        self._merger = SpmMerger(vocab.texts, ranks, kinds, spelled, unknown)
        self._add_space_prefix = vocab.add_space_prefix
        self._lowercase = vocab.lowercase

    def encode(self, text: str, *, prefix: bool, checkpoint: Checkpoint = None) -> list[int]:
        """`prefix`: the text starts the input or follows a special token."""
        if self._lowercase:
            text = lower(text)
        if prefix and self._add_space_prefix:
            text = " " + text
        return self._merger.encode(self.marked(text), checkpoint)


def byte_ids(texts: list[str]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """The id of the piece <0xHH> for each byte, int32 [256], or -1."""
    names = {f"<0x{byte:02X}>": byte for byte in range(256)}
    ids = np.full(256, -1, np.int32)
    for id_, text in enumerate(texts):
        if text in names:
            ids[names[text]] = id_
    return ids
