"""SentencePiece BPE, which GGUF calls "llama" (`tokenizer.ggml.model`): pairs merge by score, not by rank."""

from __future__ import annotations

import numpy as np

from ollama_engine.errors import ModelFormatError
from ollama_engine.tokenizer._merge import SpmMerger
from ollama_engine.tokenizer.vocab import TokenType, Vocabulary

__all__ = ["SpmModel", "byte_ids"]


class SpmModel:
    """Text between special tokens -> ids, and a token's text -> bytes. See `models.TextModel`.

    As in SentencePiece, text never becomes a control, unknown or byte piece by merging, and unused pieces are taken
    apart again; llama.cpp takes any piece. A byte that is not UTF-8 becomes its byte piece alone, where llama.cpp
    takes the following bytes along.
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
        self._merger = SpmMerger(vocab.texts, ranks, kinds, spelled, unknown)
        self._add_space_prefix = vocab.add_space_prefix

    def encode(self, text: str, *, prefix: bool) -> list[int]:
        """`prefix`: the text starts the input or follows a special token."""
        if prefix and self._add_space_prefix:
            text = " " + text
        return self._merger.encode(text.replace(" ", "▁").encode("utf-8", "surrogateescape"))

    def special_text(self, text: str) -> str:
        """How a user-defined token looks in text."""
        return text.replace("▁", " ")

    def normal_bytes(self, text: str) -> bytes:
        """What a normal token adds to the output."""
        return text.replace("▁", " ").encode("utf-8", "surrogateescape")


def byte_ids(texts: list[str]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """The piece <0xHH> of each byte, or -1."""
    names = {f"<0x{byte:02X}>": byte for byte in range(256)}
    ids = np.full(256, -1, np.int32)
    for id_, text in enumerate(texts):
        if text in names:
            ids[names[text]] = id_
    return ids
