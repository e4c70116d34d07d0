"""The model's own head (multi-token prediction), which guesses from the hidden states that the model's steps leave.

A row of the head has a token and the hidden state before it, and guesses the token behind. Steps give the hidden
states of their rows with logits: the last one of a prompt, and those of the answer. So the head sees the answer, and of
the prompt what the model made of it. Its rows count from 0 where it began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ollama_engine.input import Batch, FloatArray
from ollama_engine.kvcache import Cache
from ollama_engine.runner.execute.executor import Executor
from ollama_engine.runner.schedule.steering import Draft
from ollama_engine.runner.schedule.step_costs import StepCosts, StepPrices
from ollama_engine.runner.speculative.guessing import DraftPart, Guess, GuessingDrafter, GuessSource
from ollama_engine.runner.speculative.lookup import LookupDrafter

__all__ = ["MOST_WAITING", "HeadDrafter", "NextTokenSource"]

MOST_WAITING = 64
"""Hidden states that wait for the head, while its guesses do not pay: from more, half are dropped."""
COVERED, SEEN = 0.85, 256
"""A head of the first tokens guesses where these are so much of the text; a token counts among about so many."""


class NextTokenSource(GuessSource):
    """The head, with a cache of its own for `n_sequences` answers."""

    name = "the model's head"

    def __init__(
        self, executors: Sequence[Executor], cache: Cache, n_sequences: int, num_ctx: int, n_vocab: int,
        n_first: int = 0,
    ) -> None:  # fmt: skip
        """`executors`: the head's, and behind it that of a head of `n_first` tokens, if that is not 0."""
        super().__init__(executors[0], cache, num_ctx, n_vocab)
        self._free = list(range(n_sequences))
        self.n_first = n_first
        self._ways = [(executor, StepCosts()) for executor in executors]

    def make(
        self, drafters: Mapping[int, GuessingDrafter], prices: StepPrices, left: Mapping[int, float]
    ) -> tuple[dict[int, Draft], float]:
        """Drafts, by the head of the first tokens where all texts consist of these. See `GuessSource.make`."""
        covered = all(isinstance(each, HeadDrafter) and each.covered > COVERED for each in drafters.values())
        self._executor, self._costs = self._ways[-1 if covered else 0]
        return super().make(drafters, prices, left)

    def take(self) -> int | None:
        """An empty sequence; None where all are in use."""
        if not self._free:
            return None
        self.cut(self._free[-1], 0)
        return self._free.pop()

    def give_back(self, sequence: int) -> None:
        """A sequence is free. Raises nothing: `take` empties it."""
        self._free.append(sequence)

    def _batch(self, parts: Sequence[DraftPart]) -> Batch:
        batch = super()._batch(parts)
        if (axes := self._executor.traits.position_axes) > 1:
            batch.axes = np.tile(batch.positions, (axes, 1))
        return batch


class HeadDrafter(GuessingDrafter):
    """The drafter of one answer."""

    source: NextTokenSource

    def __init__(self, head: NextTokenSource, lookup: LookupDrafter) -> None:
        super().__init__(head, lookup)
        # -- what its sequence holds --
        self._sequence: int | None = None
        self._begin = 0
        """The position whose hidden state its first row has."""
        self._n = 0
        """Rows with the model's hidden states."""
        # -- what it does not hold yet --
        self._waiting: list[FloatArray] = []
        """The model's hidden states from position `_begin + _n` on, each float32 [rows, n_embd]."""
        self._n_waiting = 0
        """Their rows."""
        # -- its own guesses --
        self._ahead = 0
        """Rows behind those with the model's hidden states."""
        self._own: FloatArray | None = None
        """What it gave for the last row, float32 [1, n_embd]."""
        # -- the text --
        self._seen = 0
        """Tokens of the context that `covered` knows."""
        self.covered = 0.0
        """The part of its tokens, lately, that the head of the first tokens can guess."""

    def propose(self, tokens: Sequence[int], most: int) -> Draft:
        """See `GuessingDrafter`."""
        if self.source.n_first:
            for token in tokens[max(self._seen, len(tokens) - SEEN) :]:
                self._seen += 1
                self.covered += ((token < self.source.n_first) - self.covered) / min(self._seen, SEEN)
            self._seen = len(tokens)
        return super().propose(tokens, most)

    @property
    def reads(self) -> int:
        """How many hidden states it wants: none while nothing is guessed until more than MOST_WAITING have come."""
        return MOST_WAITING if self._look_at - self._length <= MOST_WAITING else 0

    def read_hidden(self, begin: int, rows: FloatArray, slot: int) -> None:
        """A step has computed hidden states, float32 [n, n_embd], of positions from `begin` on."""
        if begin != self._end:
            self._begin, self._n, self._waiting, self._n_waiting = begin, 0, [], 0
        self._waiting.append(rows)
        self._n_waiting += len(rows)
        if self._n_waiting > MOST_WAITING:
            kept = np.concatenate(self._waiting)[-MOST_WAITING // 2 :]
            self._begin, self._n = self._end - len(kept), 0
            self._waiting, self._n_waiting = [kept], len(kept)

    @property
    def _end(self) -> int:
        """The position behind those whose hidden states have come."""
        return self._begin + self._n + self._n_waiting

    def _leave(self) -> None:
        if self._sequence is not None:
            self.source.give_back(self._sequence)
            self._sequence = None

    def _align(self) -> bool:
        """Have the sequence hold the model's hidden states alone.

        False where that of the token before the last one is missing: behind tokens that a constraint forced.
        """
        if not self._n_waiting or self._end != len(self._tokens) - 1:
            return False
        if self._sequence is None:
            self._sequence = self.source.take()
        if self._sequence is None:  # requests that were preempted hold theirs
            return False
        self._ahead = 0
        return self.source.cut(self._sequence, self._n) == self._n

    def next_part(self, most: int) -> DraftPart:
        assert self._sequence is not None
        if self._n_waiting:
            self._waiting = [np.concatenate(self._waiting)]
            hidden, at = self._waiting[0][:most], self._begin + self._n + 1
            return DraftPart(self._sequence, self._n, self._tokens[at : at + len(hidden)], hidden)
        return DraftPart(self._sequence, self._n + self._ahead, self._guesses[-1:], self._own)

    def _computed(self, part: DraftPart, guess: Guess) -> bool:
        self._own = guess.hidden
        if not self._n_waiting:
            self._ahead += 1
            return True
        n = len(part.tokens)
        self._n, self._n_waiting = self._n + n, self._n_waiting - n
        self._waiting = [self._waiting[0][n:]] if self._n_waiting else []
        return not self._n_waiting
