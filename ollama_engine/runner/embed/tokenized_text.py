"""TokenizedText: one text to embed, or a pair of texts to score, as tokens."""

from __future__ import annotations

from typing import NamedTuple

from ollama_engine.config import Pooling
from ollama_engine.input import Int32Array, MediaItem
from ollama_engine.runner.request.inputs import Inputs

__all__ = ["TokenizedText"]


class TokenizedText(NamedTuple):
    """The tokens of one text, or of one pair of texts, to compute."""

    tokens: Int32Array
    """Empty for an image whose embedding is the vector: its text has nothing else."""
    pooling: Pooling
    length: int
    """Number of tokens before truncation."""
    second: int | None = None
    """Index at which the second text of a pair begins."""
    adapter: int = 0
    """Number of the adapter that computes it, from 1; 0 for none."""
    inputs: Inputs | None = None
    """The same with its images, where it has some."""

    @property
    def images(self) -> list[MediaItem]:
        """Its images, in their order; all parts of one that has several."""
        return [] if self.inputs is None else [span.item for span in self.inputs.media]
