"""PromptTemplate: a prompt with places for callers' texts, of models that rank or embed by a template in their file.

llama.cpp's converter writes one under the name "rerank", with {query} and {document} in it. "embed", with {instruction}
and {input}, is our own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ollama_engine.errors import ModelFormatError
from ollama_engine.segments import Segment, Text

__all__ = ["PromptTemplate", "find_template"]

PLACES = {"rerank": ("{query}", "{document}"), "embed": ("{instruction}", "{input}")}


class PromptTemplate:
    """The template in two halves: up to the last place of its second text, and behind it."""

    def __init__(self, key: str, text: str, first: str, second: str) -> None:
        """Raises ModelFormatError for a template without a place for the second text."""
        pieces = re.split(f"({re.escape(first)}|{re.escape(second)})", text)
        if second not in pieces:
            raise ModelFormatError(f"{key} has no {second} in it: {text!r:.100}")
        last = len(pieces) - 1 - pieces[::-1].index(second)
        self._first, self._second = first, second
        self._before, self._behind = pieces[:last], pieces[last + 1 :]

    def around(self, first: Sequence[Segment]) -> tuple[list[Segment], list[Segment]]:
        """What comes before the second text, and what comes behind it; earlier places of it are left empty."""
        texts: dict[str, Sequence[Segment]] = {self._first: first, self._second: ()}

        def filled(pieces: list[str]) -> list[Segment]:
            parts = (texts.get(piece, (Text(piece, parse_special=True),)) for piece in pieces if piece)
            return [segment for part in parts for segment in part]

        return filled(self._before), filled(self._behind)


def find_template(metadata: Mapping[str, Any], name: str) -> PromptTemplate | None:
    """The template of a file under this name of PLACES, if it has one."""
    key = f"tokenizer.chat_template.{name}"
    text = metadata.get(key)
    return PromptTemplate(key, text, *PLACES[name]) if isinstance(text, str) else None
