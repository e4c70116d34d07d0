"""ModelDrafter: guesses of a draft model for one answer, and of lookup where these are more likely.

What its sequence holds is compared with the context each time. So wrong guesses, shifts and preemptions need no care:
what differs is removed, and what is missing is computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ollama_engine.runner.schedule.draft_lengths import LEAST_CHANCE
from ollama_engine.runner.schedule.steering import Draft
from ollama_engine.runner.schedule.step_costs import StepPrices
from ollama_engine.runner.speculative.acceptance import Acceptance
from ollama_engine.runner.speculative.draft_depth import MOST_AHEAD, best_depth
from ollama_engine.runner.speculative.draft_model import DraftModel, DraftPart
from ollama_engine.runner.speculative.lookup import LookupDrafter

__all__ = ["ModelDrafter"]

FIRST_PAUSE, LONGEST_PAUSE = 32, 512
"""Tokens from one look at whether guesses pay to the next, while they do not; each time twice as many."""
PROBED = 4
"""Guesses of such a look."""


class ModelDrafter:
    """For one answer of a `namespace`. The engine's thread calls it."""

    def __init__(self, model: DraftModel, lookup: LookupDrafter, namespace: str) -> None:
        self.source = model
        self._lookup = lookup
        self._namespace = namespace
        self._sure, self._usual = Acceptance(model.sure), Acceptance(model.usual)
        # -- context --
        self._tokens: Sequence[int] = ()
        self._length = 0
        """Of the context when it was given last; `_tokens` grows with the answer."""
        self._most = 0
        # -- what its sequence holds --
        self._sequence: int | None = None
        self._n = 0
        """Tokens of the context."""
        self._ahead: list[int] = []
        """Guesses behind them."""
        # -- guesses --
        self._guesses: list[int] = []
        self._levels: list[int] = []
        self._chances: list[float] = []
        self._limit = 0
        self._looked_up = 0.0
        self._pause = FIRST_PAUSE
        self._look_at = 0

    def propose(self, tokens: Sequence[int], most: int) -> Draft:
        """What lookup guesses; the model guesses in `source.make`, if it is asked."""
        for token, guess, level in zip(tokens[self._length :], self._guesses, self._levels, strict=False):
            self._sure.count(level, right=token == guess)
            self._usual.count(0, right=token == guess)
            if token != guess:
                break
        self._guesses, self._levels, self._chances = [], [], []
        self._tokens, self._length = tokens, len(tokens)
        self._most = min(most, self.source.num_ctx - self._length)
        draft = self._lookup.propose(tokens, most)
        self._looked_up = draft.chances[0] if draft.chances else 0.0
        return draft

    def end(self, answer: Sequence[int]) -> None:
        """The answer has ended: its sequence is free."""
        self._lookup.end(answer)
        if self._sequence is not None:
            self.source.give_back(self._sequence, self._tokens[: self._n], self._namespace)
            self._sequence = None

    # -- called by the model -------------------------------------------------------------------------------------------

    def wants(self, prices: StepPrices, guess: float) -> bool:
        """Whether the model should guess now, where a guess takes so long; then `next_part` says what to compute."""
        usual = self._usual.chance(0)
        if self._most < 1 or self._looked_up > usual:
            return False
        self._limit = best_depth(prices, usual, guess)
        if self._limit:
            self._pause, self._look_at = FIRST_PAUSE, 0
        elif self._length >= self._look_at:
            self._look_at = self._length + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._limit = PROBED
        return self._limit > 0 and self._align()

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
        """What to compute next: what is missing of the context, up to `most` tokens of it, then the last guess."""
        assert self._sequence is not None
        if self._n < len(self._tokens):
            return DraftPart(self._sequence, self._n, self._tokens[self._n : self._n + most])
        return DraftPart(self._sequence, self._n + len(self._ahead), self._guesses[-1:])

    def take(self, part: DraftPart, token: int, probability: float) -> None:
        """The part was computed, and this token is the likeliest behind it."""
        if self._n < len(self._tokens):
            self._n += len(part.tokens)
            if self._n < len(self._tokens):
                return  # a long prompt: the rest comes between other steps
        else:
            self._ahead += part.tokens
        level = int(100 * probability)
        self._guesses.append(token)
        self._levels.append(level)
        self._chances.append((self._chances[-1] if self._chances else 1.0) * self._sure.chance(level))

    def goes_on(self, worth: float) -> bool:
        """Whether to guess one more token, which pays where it is right with the chance `worth`."""
        n = len(self._guesses)
        if not n or n >= min(self._most, MOST_AHEAD) or self._chances[-1] < LEAST_CHANCE:
            return False
        return n < min(self._limit, PROBED) or self._chances[-1] * self._usual.chance(0) > worth

    @property
    def draft(self) -> Draft:
        """The guesses."""
        return Draft(tuple(self._guesses), tuple(self._chances))
