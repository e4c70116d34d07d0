"""Drafts by lookup: what followed the same tokens earlier in the context, or in recent answers. No model is needed.

Prompt lookup decoding (Saxena, 2023) and llama.cpp's lookup drafts do the same with n-grams of fixed lengths. Here the
longest match counts, and a lookup that was right goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ollama_engine.runner.schedule.draft_lengths import LEAST_CHANCE
from ollama_engine.runner.schedule.steering import Draft
from ollama_engine.runner.speculative.acceptance import Acceptance
from ollama_engine.runner.speculative.ngram_index import LONGEST, NgramIndex
from ollama_engine.runner.speculative.recent_answers import END, RecentAnswers

__all__ = ["LookupDrafter"]


class _Trail(NamedTuple):
    """A match that is followed: the token at `at` of `source` is the guess for the next token."""

    source: NgramIndex
    at: int
    length: int

    @property
    def guess(self) -> int | None:
        """The token that may come next; None where the index has no more."""
        tokens = self.source.part(self.at, self.at + 1)
        return tokens[0] if tokens and tokens[0] != END else None

    def following(self) -> _Trail:
        return _Trail(self.source, self.at + 1, min(self.length + 1, LONGEST))


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
        for token in latest if self._trail is not None else ():
            self._compare(token)
        self._index.extend(latest)
        if self._trail is None or self._trail.guess is None:
            self._trail = self._found()
        return self._draft(most)

    def _compare(self, token: int) -> None:
        trail = self._trail
        if trail is None:
            return
        right = trail.guess == token
        if trail.guess is not None:
            self._acceptance.count(trail.length, right=right)
        self._trail = trail.following() if right else None

    def _found(self) -> _Trail | None:
        end = self._index.part(len(self._index) - LONGEST, len(self._index))
        match, index = self._index.find(end, within=True), self._index
        if self._recent is not None:
            for other in self._recent.indexes():
                found = other.find(end, within=False)
                if found is not None and (match is None or found[1] > match[1]):
                    match, index = found, other
        return None if match is None else _Trail(index, *match)

    def _draft(self, most: int) -> Draft:
        trail = self._trail
        if trail is None:
            return Draft()
        tokens = trail.source.part(trail.at, trail.at + most)
        if END in tokens:
            tokens = tokens[: tokens.index(END)]
        chances, chance = [], 1.0
        for i in range(len(tokens)):
            chance *= self._acceptance.chance(min(trail.length + i, LONGEST))
            if chance < LEAST_CHANCE:
                break
            chances.append(chance)
        return Draft(tuple(tokens[: len(chances)]), tuple(chances))

    def end(self, answer: Sequence[int]) -> None:
        """The answer has ended: others of its namespace may look it up."""
        if self._recent is not None and answer:
            self._recent.add(answer)
