"""Scoring: a request for what is read from a prompt's logits, and for no answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ollama_engine.runner.schedule.queued import Kind
from ollama_engine.runner.schedule.row_readers import RowReader
from ollama_engine.runner.schedule.sequence import ScheduledRequest

__all__ = ["Scoring"]


@dataclass(slots=True, eq=False, kw_only=True)
class Scoring(ScheduledRequest):
    """A request for what its row reader makes of a prompt's logits."""

    kind: ClassVar[Kind] = "scoring"

    row_reader: RowReader
    shared: int = 0
    """Inputs at its beginning that the one it follows has too."""
    kept: bool = True
    """Whether others are likely to begin like it."""

    @property
    def leaves_history(self) -> bool:
        """See `ScheduledRequest`."""
        return self.kept and self.options.cache

    @property
    def ready(self) -> bool:
        """Whether what it shares is computed, or never will be."""
        return self.follows is None or self.follows.ended or self.follows.submitted >= self.shared
