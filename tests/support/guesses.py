"""Drafters of which a test says how often they are wrong, and requests that draft with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from ollama_engine.runner.core import submission
from ollama_engine.runner.core.new_requests import new_generation
from ollama_engine.runner.schedule.steering import Draft

__all__ = ["Guesses", "drafting"]


class Guesses:
    """A drafter whose guesses are right, but for every so many: a context's whole `text` is known."""

    source = None

    def __init__(self, text: list[int], wrong_every: int) -> None:
        self._text = text
        self._wrong_every = wrong_every

    def propose(self, tokens: Sequence[int], most: int) -> Draft:
        guesses = range(len(tokens), min(len(tokens) + 5, len(tokens) + most, len(self._text)))
        return Draft([self._text[at] ^ (at % self._wrong_every == 0) for at in guesses])

    def end(self, answer: Sequence[int]) -> None:
        """Nothing is kept."""


def drafting(*drafters: Guesses | None) -> Any:
    """Within it, the next requests draft with these."""
    coming = iter(drafters)

    def with_drafter(*args: Any, **keywords: Any) -> Any:
        return new_generation(*args, **{**keywords, "drafter": next(coming)})

    return patch.object(submission, "new_generation", with_drafter)
