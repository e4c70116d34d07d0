"""A draft model: a smaller model of the same vocabulary, which guesses tokens for several answers side by side.

What a sequence of it holds is compared with the context each time. So wrong guesses, shifts and preemptions need no
care: what differs is removed, and what is missing is computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ollama_engine.input import Int32Array
from ollama_engine.kvcache import Cache
from ollama_engine.runner.execute.executor import Executor
from ollama_engine.runner.speculative.guessing import DraftPart, Guess, GuessingDrafter, GuessSource
from ollama_engine.runner.speculative.lookup import LookupDrafter

__all__ = ["DraftModel", "ModelDrafter"]


class _History(NamedTuple):
    """What a free sequence holds: the tokens of an answer that has ended, for those that begin alike."""

    namespace: str
    tokens: Int32Array


class DraftModel(GuessSource):
    """Computes with a cache of its own, which has room for `n_sequences` contexts of `num_ctx` tokens."""

    name = "the draft model"

    def __init__(
        self, executor: Executor, cache: Cache, n_sequences: int, num_ctx: int, n_vocab: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        super().__init__(executor, cache, num_ctx, n_vocab, clock)
        self._free = {number: _History("", np.empty(0, np.int32)) for number in range(n_sequences)}

    def take(self, context: Int32Array, namespace: str) -> tuple[int, int] | None:
        """(a sequence for a context, how many of its tokens it holds); None where all are in use."""
        if not self._free:
            return None
        held = {
            number: _n_common(context, history.tokens) if history.namespace == namespace else 0
            for number, history in self._free.items()
        }
        sequence = max(held, key=lambda number: (held[number], -len(self._free[number].tokens)))
        del self._free[sequence]
        return sequence, self.cut(sequence, min(held[sequence], len(context) - 1))

    def give_back(self, sequence: int, tokens: Sequence[int], namespace: str) -> None:
        """A sequence, which holds these tokens, is free."""
        self._free[sequence] = _History(namespace, np.array(tokens, np.int32))


class ModelDrafter(GuessingDrafter):
    """The drafter of one answer of a `namespace`."""

    source: DraftModel

    def __init__(self, model: DraftModel, lookup: LookupDrafter, namespace: str) -> None:
        super().__init__(model, lookup)
        self._namespace = namespace
        # -- what its sequence holds --
        self._sequence: int | None = None
        self._n = 0
        """Tokens of the context."""
        self._ahead: list[int] = []
        """Guesses behind them."""

    def _leave(self) -> None:
        if self._sequence is not None:
            self.source.give_back(self._sequence, self._tokens[: self._n], self._namespace)
            self._sequence = None

    def _align(self) -> bool:
        """Have the sequence hold nothing but tokens of the context, and not the last of them.

        False where it has none: requests that were preempted hold theirs.
        """
        tokens, n = self._tokens, self._n
        if self._sequence is None:
            taken = self.source.take(np.array(tokens[:], np.int32), self._namespace)
            if taken is None:
                return False
            self._sequence, self._n = taken
            return True
        held = 0
        if n <= len(tokens):
            for token, ahead in zip(tokens[n : n + len(self._ahead)], self._ahead, strict=False):
                if token != ahead:
                    break
                held += 1
        else:  # a shift took tokens out of the middle
            n = 0
        self._ahead = []
        self._n = self.source.cut(self._sequence, min(n + held, len(tokens) - 1))
        return True

    def next_part(self, most: int) -> DraftPart:
        assert self._sequence is not None
        if self._n < len(self._tokens):
            return DraftPart(self._sequence, self._n, self._tokens[self._n : self._n + most])
        return DraftPart(self._sequence, self._n + len(self._ahead), self._guesses[-1:])

    def _computed(self, part: DraftPart, guess: Guess) -> bool:
        if self._n < len(self._tokens):
            self._n += len(part.tokens)
            return self._n == len(self._tokens)
        self._ahead += part.tokens
        return True


def _n_common(context: Int32Array, held: Int32Array) -> int:
    """How many tokens two texts begin with alike."""
    n = min(len(context), len(held))
    differs = np.flatnonzero(context[:n] != held[:n])
    return int(differs[0]) if len(differs) else n
