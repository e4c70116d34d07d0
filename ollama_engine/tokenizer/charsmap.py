"""Reads the table by which SentencePiece normalizes text: `tokenizer.ggml.precompiled_charsmap`.

Layout: the size of the trie in bytes, the trie as a double array (Aoe 1989, in the layout of darts-clone), and the
replacements, each ended by a zero byte.
"""

from __future__ import annotations

import numpy as np

from ollama_engine.errors import ModelFormatError
from ollama_engine.tokenizer._texts import CharsMapper

__all__ = ["Charsmap"]


class Charsmap:
    """Replaces the longest key at each place of a text, from left to right.

    Raises ModelFormatError for bytes that are no such table.
    """

    def __init__(self, data: bytes) -> None:
        size = int.from_bytes(data[:4], "little")
        texts = data[4 + size :]
        if len(data) < 4 or size % 4 or size == 0 or not texts.endswith(b"\0"):
            raise ModelFormatError(
                f"tokenizer.ggml.precompiled_charsmap has {len(data)} bytes, of which a trie takes {size} and texts, "
                "with a zero at the end, the rest; convert the model again"
            )
        self._mapper = CharsMapper(np.frombuffer(data, "<u4", size // 4, 4).astype(np.uint32), texts)

    def apply(self, text: str) -> str:
        """The normalized text. Surrogates, which stand for invalid UTF-8, stay.

        Raises ModelFormatError for a key without a replacement.
        """
        return self._mapper.apply(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")
