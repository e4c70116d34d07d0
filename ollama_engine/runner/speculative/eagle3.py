"""An EAGLE-3 head, which guesses from the auxiliary states that the model's steps leave (see `models.eagle3`).

Each row of it has the model's states, or what it made of its own last row: zeros stand for the other.
"""

from __future__ import annotations

import numpy as np

from ollama_engine.input import FloatArray, Int32Array
from ollama_engine.kvcache import Cache
from ollama_engine.runner.execute.executor import Executor
from ollama_engine.runner.speculative.guessing import DraftPart, Guess
from ollama_engine.runner.speculative.next_tokens import MOST_WAITING, HeadDrafter, NextTokenSource

__all__ = ["Eagle3Drafter", "Eagle3Source"]


class Eagle3Source(NextTokenSource):
    """The head, with a cache of its own for `n_sequences` answers."""

    name = "the EAGLE-3 head"

    def __init__(
        self, executor: Executor, cache: Cache, n_sequences: int, num_ctx: int, n_vocab: int, *,
        tokens: Int32Array | None, n_aux: int, n_own: int,
    ) -> None:  # fmt: skip
        """`tokens`: the model's token for each of the head's; `n_vocab` of the model's may be drawn.

        A row has `n_aux` numbers of the model's states, and `n_own` of the head's.
        """
        super().__init__((executor,), cache, n_sequences, num_ctx, n_vocab if tokens is None else len(tokens))
        # A token that is never drawn is guessed as another one, which is as wrong.
        self._tokens = None if tokens is None else np.where(tokens < n_vocab, tokens, 0)
        self.n_aux = n_aux
        self.n_own = n_own

    def _best(self, logits: FloatArray) -> tuple[int, float]:
        token, probability = super()._best(logits)
        return token if self._tokens is None else int(self._tokens[token]), probability


class Eagle3Drafter(HeadDrafter):
    """The drafter of one answer."""

    source: Eagle3Source

    def read_hidden(self, begin: int, rows: FloatArray, slot: int) -> None:
        """A step has computed auxiliary states, float32 [n, n_aux], of positions from `begin` on."""
        last = rows[-MOST_WAITING // 2 :]
        joined = np.pad(last, ((0, 0), (0, self.source.n_own)))
        super().read_hidden(begin + len(rows) - len(last), joined, slot)

    def _computed(self, part: DraftPart, guess: Guess) -> bool:
        assert guess.hidden is not None
        return super()._computed(part, guess._replace(hidden=np.pad(guess.hidden, ((0, 0), (self.source.n_aux, 0)))))
