"""A model's assistant, which guesses from the last hidden state and from what the model's cache holds.

It stores nothing, so nothing is read for it and nothing goes back behind wrong guesses. It sees images as far as the
model's keys and values tell of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ollama_engine.input import Batch, FloatArray
from ollama_engine.runner.speculative.guessing import DraftPart, Guess, GuessingDrafter, GuessSource
from ollama_engine.runner.speculative.lookup import LookupDrafter

__all__ = ["AssistantDrafter", "AssistantSource"]


class AssistantSource(GuessSource):
    """The assistant. Its cache is the model's, which it only reads."""

    name = "the assistant"

    def holds(self, sequence: int, end: int) -> bool:
        """Whether the cache holds what a token at position `end` of a sequence sees of those before it."""
        return self._cache.can_resume(sequence, end)

    def _batch(self, parts: Sequence[DraftPart]) -> Batch:
        """Each row sees what the token before it sees, which is the last one that the cache holds."""
        batch = super()._batch(parts)
        batch.axes, batch.positions = batch.positions, batch.positions - 1
        return batch


class AssistantDrafter(GuessingDrafter):
    """The drafter of one answer."""

    source: AssistantSource

    def __init__(self, assistant: AssistantSource, lookup: LookupDrafter) -> None:
        super().__init__(assistant, lookup)
        self._state: FloatArray | None = None
        """The model's hidden state that the last token was drawn from, float32 [1, n_embd]."""
        self._end = 0
        """The position behind that state's."""
        self._sequence = 0
        """Where the model's cache has the answer."""
        self._own: FloatArray | None = None
        """What the assistant gave for its last guess, float32 [1, n_embd]."""

    @property
    def reads(self) -> int:
        """The last hidden state: it guesses from that one alone."""
        return 1

    def read_hidden(self, begin: int, rows: FloatArray, slot: int) -> None:
        """A step has computed hidden states, float32 [n, n_embd], of positions from `begin` on, in this sequence."""
        self._state, self._end, self._sequence = rows[-1:], begin + len(rows), slot

    def _leave(self) -> None:
        """The sequence is the model's."""

    def _align(self) -> bool:
        """Whether the last token was drawn from the state that it has; not so behind tokens that were forced."""
        self._own = None
        return self._end == len(self._tokens) - 1 > 0 and self.source.holds(self._sequence, self._end)

    def next_part(self, most: int) -> DraftPart:
        assert self._state is not None
        last = self._guesses[-1:] or [self._tokens[-1]]
        return DraftPart(self._sequence, self._end, last, self._state if self._own is None else self._own)

    def _computed(self, part: DraftPart, guess: Guess) -> bool:
        assert guess.hidden is not None
        assert self._state is not None
        self._own = guess.hidden[:, : self._state.shape[1]]
        return True
