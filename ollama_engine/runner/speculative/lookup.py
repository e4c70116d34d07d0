"""Drafts by lookup: what followed the same tokens earlier in the context, or in recent answers. No model is needed.

Prompt lookup decoding (Saxena, 2023) and llama.cpp's lookup drafts do the same with n-grams of fixed lengths. Here the
longest match counts, and a lookup that was right goes on where it was. How sure a guess is: by the length of the match,
and by how many of the earlier places with the same two tokens go on as it says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ollama_engine.runner.schedule.draft_lengths import LEAST_CHANCE
from ollama_engine.runner.schedule.steering import Draft
from ollama_engine.runner.speculative.acceptance import Acceptance
from ollama_engine.runner.speculative.ngram_index import LONGEST, NgramIndex, agreements, chances_of
from ollama_engine.runner.speculative.recent_answers import END, RecentAnswers

__all__ = ["LookupDrafter"]


class _Trail(NamedTuple):
    """A match that is followed: the token at `at` of `source` is the guess for the next token."""

    source: NgramIndex
    at: int
    length: int

    def guesses(self, most: int) -> list[int]:
        """The tokens that may come next: as many, or up to the end of the index or of an answer in it."""
        tokens = self.source.part(self.at, self.at + most)
        return tokens[: tokens.index(END)] if END in tokens else tokens

    def behind(self, n: int) -> _Trail:
        return _Trail(self.source, self.at + n, min(self.length + n, LONGEST))


class LookupDrafter:
    """Guesses for one answer. Each guess is compared with the token that came, also where no step verified it.

    `answers`: gives the recent answers of its namespace. The engine thread calls it, as it does all methods.
    """

    source = None

    def __init__(self, acceptance: Acceptance, answers: Callable[[], RecentAnswers] | None = None) -> None:
        self._acceptance = acceptance
        self._answers = answers
        self._recent: RecentAnswers | None = None
        self._index = NgramIndex()
        self._trail: _Trail | None = None

    def propose(self, tokens: Sequence[int], most: int) -> Draft:
        """What followed the longest match, with the chance that all tokens up to each are right."""
        if self._recent is None and self._answers is not None:
            self._recent = self._answers()
        if len(tokens) < len(self._index):  # a shift took tokens out of the middle
            self._index, self._trail = NgramIndex(), None
        latest = tokens[len(self._index) :]
        if self._trail is not None:
            self._trail = self._compare(self._trail, latest)
        self._index.extend(latest)
        if self._trail is None or not self._trail.guesses(1):
            self._trail = self._found()
        return Draft() if self._trail is None else self._draft(self._trail, most)

    def _compare(self, trail: _Trail, latest: Sequence[int]) -> _Trail | None:
        """Count the guesses that were right, and the first wrong one. What goes on behind them; None where they end."""
        guesses = trail.guesses(len(latest))
        right = next((i for i, guess in enumerate(guesses) if guess != latest[i]), len(guesses))
        for i, sureness in enumerate(self._sureness(trail, guesses[: right + 1])):
            self._acceptance.count(sureness, right=i < right)
        return trail.behind(right) if right == len(latest) else None

    def _sureness(self, trail: _Trail, guesses: list[int]) -> list[int]:
        """How sure each guess is, as `acceptance.BY_MATCH` has it."""
        agreed = agreements(self._indexes(), self._last(2) + guesses)
        return [64 * agreement + min(trail.length + i, LONGEST) for i, agreement in enumerate(agreed)]

    def _last(self, n: int) -> list[int]:
        return self._index.part(len(self._index) - n, len(self._index))

    def _indexes(self) -> tuple[NgramIndex, ...]:
        """Where to look, this answer's context first."""
        return (self._index,) if self._recent is None else (self._index, *self._recent.indexes())

    def _found(self) -> _Trail | None:
        end, best = self._last(LONGEST), None
        for index in self._indexes():
            match = index.find(end, within=index is self._index)
            if match is not None and (best is None or match[1] > best.length):
                best = _Trail(index, *match)
        return best

    def _draft(self, trail: _Trail, most: int) -> Draft:
        tokens, known = trail.guesses(most), self._acceptance
        chances = chances_of(
            self._indexes(), self._last(2) + tokens, trail.length, known.levels, known.chances(), LEAST_CHANCE
        )
        return Draft(tuple(tokens[: len(chances)]), tuple(chances))

    def end(self, answer: Sequence[int]) -> None:
        """The answer has ended: others of its namespace may look it up."""
        if self._recent is not None and answer:
            self._recent.add(answer)
