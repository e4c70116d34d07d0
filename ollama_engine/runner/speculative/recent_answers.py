"""Recent answers: their tokens, by namespace, for answers to come that say the same."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from ollama_engine.runner.speculative.ngram_index import NgramIndex

__all__ = ["END", "AnswerMemory", "RecentAnswers"]

END = -1
"""Stands behind each answer: no token."""

MOST_TOKENS = 1 << 14
"""Tokens of answers that are kept of one namespace: half of them may be older than the other half."""
MOST_NAMESPACES = 8


class RecentAnswers:
    """The latest answers of one namespace: a full index becomes the older one, and the one before it goes."""

    def __init__(self) -> None:
        self._newer, self._older = NgramIndex(), NgramIndex()

    def indexes(self) -> tuple[NgramIndex, NgramIndex]:
        """Where to look, the newer answers first."""
        return self._newer, self._older

    def add(self, answer: Sequence[int]) -> None:
        """Keep the end of an answer."""
        if len(self._newer) + len(answer) > MOST_TOKENS // 2:
            self._newer, self._older = NgramIndex(), self._newer
        self._newer.extend([*answer[-MOST_TOKENS // 2 :], END])


class AnswerMemory:
    """The namespaces of one engine; the one used longest ago goes first. The engine thread's."""

    def __init__(self) -> None:
        self._namespaces: OrderedDict[str, RecentAnswers] = OrderedDict()

    def of(self, namespace: str) -> RecentAnswers:
        """The recent answers of a namespace."""
        recent = self._namespaces.setdefault(namespace, RecentAnswers())
        self._namespaces.move_to_end(namespace)
        while len(self._namespaces) > MOST_NAMESPACES:
            self._namespaces.popitem(last=False)
        return recent
