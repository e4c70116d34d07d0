"""RankTemplate: how a query and a document become one prompt, for rerankers that are generative models.

llama.cpp's converter writes such a template under the name "rerank": a text with {query} and {document} in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ollama_engine.errors import ModelFormatError

__all__ = ["KEY", "RankTemplate", "find_rank_template"]

KEY = "tokenizer.chat_template.rerank"

Parts = list[tuple[str, bool]]
"""Texts, and whether control tokens are parsed in them; see `Tokenizer.encode_parts`."""


class RankTemplate:
    """The template in two halves: up to its document, and behind it. Callers' texts bring no control tokens."""

    def __init__(self, text: str) -> None:
        """Raises ModelFormatError for a template without a document."""
        pieces = re.split(r"(\{query\}|\{document\})", text)
        if "{document}" not in pieces:
            raise ModelFormatError(f"{KEY} has no {{document}} in it: {text!r:.100}")
        last = len(pieces) - 1 - pieces[::-1].index("{document}")
        self._before, self._behind = pieces[:last], pieces[last + 1 :]

    def before(self, query: str) -> Parts:
        """What comes before the last place of the document; earlier places are left empty."""
        return _filled(self._before, query)

    def behind(self, query: str) -> Parts:
        """What comes behind the document."""
        return _filled(self._behind, query)


def find_rank_template(metadata: Mapping[str, Any]) -> RankTemplate | None:
    """The template of a file. None where the model reads a pair as BERT does."""
    text = metadata.get(KEY)
    return RankTemplate(text) if isinstance(text, str) else None


def _filled(pieces: list[str], query: str) -> Parts:
    texts = {"{query}": (query, False), "{document}": ("", False)}
    return [texts.get(piece, (piece, True)) for piece in pieces if piece]
