"""What a drafter is given and what is taken from it: a context's tokens, and guesses that are tokens."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import overload

from ollama_engine.input import Int32Array

__all__ = ["ContextTokens", "checked_guesses"]


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
    return tuple(_token(guess, n_vocab) for guess in islice(guesses, most))


def _token(guess: object, n_vocab: int) -> int:
    token = operator.index(guess)  # type: ignore[arg-type]  # anything may come; it raises
    if not 0 <= token < n_vocab:
        raise ValueError(f"a drafter guesses tokens 0 to {n_vocab - 1}, got {token}")
    return token
