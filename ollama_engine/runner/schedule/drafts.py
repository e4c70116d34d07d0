"""What a drafter is given, a context's tokens, and what is taken from it: guesses that are tokens and may come."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import overload

from ollama_engine.input import Int32Array
from ollama_engine.runner.schedule.steering import Constraint, Draft

__all__ = ["MAX_DRAFT", "ContextTokens", "checked_guesses", "constrained"]

MAX_DRAFT = 63
"""Most tokens of a draft: with the last token these are 64 rows, the most for paged attention."""


class ContextTokens(Sequence[int]):
    """The tokens of a context, without a copy of them."""

    def __init__(self, prompt: Int32Array, answer: Sequence[int]) -> None:
        self._prompt = prompt
        self._answer = answer

    def __len__(self) -> int:
        return len(self._prompt) + len(self._answer)

    @overload
    def __getitem__(self, at: int) -> int: ...

    @overload
    def __getitem__(self, at: slice) -> list[int]: ...

    def __getitem__(self, at: int | slice) -> int | list[int]:
        if isinstance(at, slice):
            begin, end, step = at.indices(len(self))
            n = len(self._prompt)
            if step == 1 and begin >= n:
                return list(self._answer[begin - n : max(begin, end) - n])
            return [*self._prompt.tolist(), *self._answer][at]
        n = len(self._prompt)
        at = range(len(self))[at]
        return int(self._prompt[at]) if at < n else self._answer[at - n]


def checked_guesses(guesses: Iterable[object], most: int, n_vocab: int) -> tuple[int, ...]:
    """The first `most` guesses as token ids. Raises TypeError or ValueError where one is none."""
    tokens = tuple(map(operator.index, islice(guesses, most)))  # type: ignore[arg-type]  # anything may come; it raises
    if tokens and (min(tokens) < 0 or max(tokens) >= n_vocab):
        wrong = next(token for token in tokens if not 0 <= token < n_vocab)
        raise ValueError(f"a drafter guesses tokens 0 to {n_vocab - 1}, got {wrong}")
    return tokens


def constrained(draft: Draft, constraint: Constraint | None, most: int) -> Draft:
    """What a constraint leaves of a draft, with the tokens that it forces in between: `most` tokens at most.

    A forced token is as likely as the guesses before it.
    """
    if constraint is None or not draft.tokens:
        return draft
    foreseen = constraint.foresee(draft.tokens)[:most]
    tokens = tuple(token for token, _ in foreseen)
    bits = sum(1 << i for i, (_, forced) in enumerate(foreseen) if forced)
    if draft.chances is None:
        return Draft(tokens, forced=bits)
    chances, chance = [], 1.0
    for i, (_, forced) in enumerate(foreseen):  # guesses keep their places: forced tokens are some of them, or follow
        if not forced:
            chance *= draft.chances[i] / (draft.chances[i - 1] if i else 1.0)
        chances.append(chance)
    return Draft(tokens, tuple(chances), bits)
