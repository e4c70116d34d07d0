"""Row readers: what is kept of a prompt's logits. Rows are read as each step gives them, and are gone after that."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ollama_engine.input import FloatArray
from ollama_engine.runner.request.inputs import Inputs
from ollama_engine.sample import Sampler, TokenLogprobs

__all__ = ["AllRows", "PromptLogprobs", "RowReader", "is_sound"]


class RowReader(Protocol):
    """Reads the rows of a sequence's prompt, in their order; each once, also where the sequence is preempted."""

    sound: bool
    """Whether all rows so far were numbers; others lead to an error, or are kept by a reader that takes them."""

    @property
    def next(self) -> int | None:
        """The input whose row it reads next, and then those of all that follow; None when it needs no more.

        Inputs before it need not be computed where the cache has them.
        """

    def read(self, begin: int, logits: FloatArray) -> None:
        """Rows of the inputs from `begin` on, float32 [n, n_columns], only readable now.

        `begin` is `next`. An exception ends the request alone.
        """

    def result(self) -> object:
        """The result, after all rows."""


class AllRows:
    """Keeps every row."""

    def __init__(self, n_inputs: int, n_columns: int) -> None:
        self.rows = np.empty((n_inputs, n_columns), dtype=np.float32)
        self.sound = True
        self._done = 0

    @property
    def next(self) -> int | None:
        """See `RowReader`."""
        return self._done if self._done < len(self.rows) else None

    def read(self, begin: int, logits: FloatArray) -> None:
        """See `RowReader`."""
        self._done = begin + len(logits)
        self.rows[begin : self._done] = logits
        self.sound &= is_sound(logits)

    def result(self) -> FloatArray:
        """Logits float32 [n_inputs, n_columns]."""
        return self.rows


class PromptLogprobs:
    """The log-probability of each token of a prompt after those before it, and the `top` best tokens in its place.

    Independent of the sampler's parameters, as those of an answer are (`Sampler.logprobs`).
    """

    sound = True

    def __init__(self, inputs: Inputs, sampler: Sampler, top: int) -> None:
        self._tokens = inputs.tokens
        self._is_text = inputs.is_text()
        self._sampler = sampler
        self._top = top
        self._found: list[TokenLogprobs | None] = [None]

    @property
    def next(self) -> int | None:
        """See `RowReader`; the last row is the answer's."""
        return len(self._found) - 1 if len(self._found) < len(self._tokens) else None

    def read(self, begin: int, logits: FloatArray) -> None:
        """See `RowReader`."""
        n_vocab = self._sampler.n_vocab
        followers = range(begin + 1, min(begin + 1 + len(logits), len(self._tokens)))
        # Together, so that rows that raise leave nothing behind.
        self._found += [self._entry(at, row[:n_vocab]) for at, row in zip(followers, logits, strict=False)]

    def _entry(self, at: int, row: FloatArray) -> TokenLogprobs | None:
        token = int(self._tokens[at])
        if not self._is_text[at] or token >= self._sampler.n_vocab:
            return None  # a place of a media item: the model predicts none
        return self._sampler.logprobs(row, token, self._top)

    def result(self) -> tuple[TokenLogprobs | None, ...]:
        """One entry for each input; None for the first, which follows nothing, and for those of media."""
        return tuple(self._found)


def is_sound(logits: FloatArray) -> bool:
    """Whether there is no NaN and no +infinity among them."""
    return bool((logits < np.inf).all())
