"""Guesses that are computed: a source of them for several answers, and what one answer's drafter knows of them."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from ollama_engine.input import Batch, BatchMedia, FloatArray, MediaItem
from ollama_engine.kvcache import Cache
from ollama_engine.runner.execute.executor import Executor
from ollama_engine.runner.execute.graph import raise_error
from ollama_engine.runner.schedule.draft_lengths import LEAST_CHANCE
from ollama_engine.runner.schedule.steering import Draft
from ollama_engine.runner.schedule.step_costs import StepCosts, StepPrices
from ollama_engine.runner.speculative.acceptance import Acceptance
from ollama_engine.runner.speculative.draft_depth import MOST_AHEAD, best_depth
from ollama_engine.runner.speculative.lookup import LookupDrafter

__all__ = ["DraftPart", "Guess", "GuessSource", "GuessingDrafter"]

log = logging.getLogger(__name__)

SURE = {0: 0.2, 20: 0.4, 40: 0.55, 60: 0.7, 75: 0.8, 85: 0.9, 95: 0.97}
"""Chances of a guess before anything is known, by how likely its maker finds it, in percent."""
USUAL = {0: 0.7}
"""The same for any guess."""
FIRST_PAUSE, LONGEST_PAUSE = 32, 512
"""Tokens from one look at whether guesses pay to the next, while they do not; each time twice as many."""
PROBED = 2
"""Guesses of such a look."""
MOST_NEW = 1 + MOST_AHEAD
"""Most tokens of an answer that come in one step with a draft. A part with more of them reads a context."""


class DraftPart(NamedTuple):
    """Tokens that are computed for a guess, in one sequence of its maker, from this position on."""

    sequence: int
    position: int
    tokens: Sequence[int]
    hidden: FloatArray | None = None
    """The hidden state before each token, float32 [tokens, n_embd], where the maker reads those."""


class Guess(NamedTuple):
    """What the maker finds behind a part."""

    token: int
    """The likeliest."""
    probability: float
    hidden: FloatArray | None = None
    """The part's last hidden state, float32 [1, n_embd], where the maker gives those."""


class GuessSource:
    """Computes guesses with a cache of its own, which has room for `n_sequences` contexts of `num_ctx` tokens.

    The engine's thread calls it while no step is in flight. Guesses are tokens below `n_vocab`.
    """

    name = ""
    """What the log calls it."""

    def __init__(
        self, executor: Executor, cache: Cache, num_ctx: int, n_vocab: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self._executor = executor
        self._cache = cache
        self._clock = clock
        self._n_vocab = n_vocab
        self.num_ctx = num_ctx
        self._costs = StepCosts()
        self._failed = False
        self._spent = 0.0
        """Seconds that guesses took since `make` was called."""
        # What is known of the guesses for all answers.
        self.sure, self.usual = Acceptance(expected=SURE), Acceptance(expected=USUAL)

    def cut(self, sequence: int, n: int) -> int:
        """Have a sequence hold its first `n` tokens at most; returns how many it holds."""
        n = n if self._cache.can_resume(sequence, n) else 0
        self._cache.remove(sequence, n)
        return n

    def make(
        self, drafters: Mapping[int, GuessingDrafter], prices: StepPrices, left: Mapping[int, float]
    ) -> tuple[dict[int, Draft], float]:
        """Drafts for those of these answers for which guessing pays, and the seconds that guesses took.

        See `GuessingDrafter`, and `DraftSource.make`. `left`: the seconds that each may lose.
        """
        self._spent = 0.0
        if self._failed:
            return {}, 0.0
        guess = self._costs.seconds(len(drafters))
        try:
            guessing = {key: each for key, each in drafters.items() if each.wants(prices, guess, left[key])}
            self._guess(list(guessing.values()), prices)
        except Exception as error:
            # Whatever it is, answers go on without it.
            with suppress(Exception):  # a handler that raises must not end the engine
                log.error("%s failed, and guesses no more: %s", self.name, error)
            self._failed = True
            return {}, self._spent
        return {key: drafter.draft for key, drafter in guessing.items()}, self._spent

    def _guess(self, active: list[GuessingDrafter], prices: StepPrices) -> None:
        for _ in range(MOST_AHEAD):
            if not active:
                return
            each = max(1, self._executor.batch_size // len(active))
            begin = self._clock()
            parts = [drafter.next_part(each) for drafter in active]
            computed = zip(active, parts, self._compute(parts), strict=True)
            guessed = [drafter.take(part, guess) for drafter, part, guess in computed]
            if all(guessed) and all(len(part.tokens) <= MOST_NEW for part in parts):
                self._spent += self._clock() - begin
            cost = (self._costs.seconds(len(active)) or 0.0) / len(active) + prices.row
            worth = cost * prices.n_rows / prices.plain
            active = [drafter for drafter in active if drafter.goes_on(worth)]

    def _compute(self, parts: Sequence[DraftPart]) -> list[Guess]:
        """The guess behind each part."""
        begin, reused = self._clock(), self._executor.counts.reused
        batch = self._batch(parts)
        self._executor.prepare(batch)
        self._executor.launch(batch.tokens, self._executor.media_rows(batch, raise_error))
        with self._executor.results() as logits:
            guesses = [Guess(*self._best(row[: self._n_vocab])) for row in logits]
            if self._executor.splits is not None:
                hidden = self._executor.hidden()
                guesses = [guess._replace(hidden=hidden[i : i + 1]) for i, guess in enumerate(guesses)]
        if len(batch) == len(parts) and self._executor.counts.reused > reused:
            self._costs.note(len(parts), self._clock() - begin)
        return guesses

    def _best(self, logits: FloatArray) -> tuple[int, float]:
        """(the likeliest token, its probability)."""
        token = int(logits.argmax())
        probability = float(1 / np.exp(logits - logits[token]).sum())
        return token, probability if probability > 0 else 0.0  # NaN, too

    def _batch(self, parts: Sequence[DraftPart]) -> Batch:
        lengths = [len(part.tokens) for part in parts]
        runs = [np.arange(part.position, part.position + len(part.tokens), dtype=np.int32) for part in parts]
        given = [part.hidden for part in parts if part.hidden is not None]
        hidden = np.concatenate(given) if given else None
        return Batch(
            np.array([token for part in parts for token in part.tokens], np.int32),
            np.concatenate(runs),
            np.repeat(np.array([part.sequence for part in parts], np.int32), lengths),
            np.cumsum(lengths, dtype=np.int32) - np.int32(1),
            media=() if hidden is None else (BatchMedia(0, len(hidden), MediaItem(0, len(hidden), lambda: hidden)),),
        )


class GuessingDrafter(ABC):
    """For one answer: guesses of a source, and of lookup where these are more likely. The engine's thread calls it."""

    def __init__(self, source: GuessSource, lookup: LookupDrafter) -> None:
        self.source = source
        self._lookup = lookup
        self._sure, self._usual = Acceptance(source.sure), Acceptance(source.usual)
        # -- context --
        self._tokens: Sequence[int] = ()
        self._length = 0
        """Of the context when it was given last; `_tokens` grows with the answer."""
        self._most = 0
        # -- guesses --
        self._guesses: list[int] = []
        self._sureness: list[int] = []
        """How likely its maker finds each guess, in percent."""
        self._chances: list[float] = []
        self._limit = 0
        self._looked_up = 0.0
        self._pause = FIRST_PAUSE
        self._look_at = 0

    def propose(self, tokens: Sequence[int], most: int) -> Draft:
        """What lookup guesses; others come in `source.make`, if it is asked."""
        for token, guess, sureness in zip(tokens[self._length :], self._guesses, self._sureness, strict=False):
            self._sure.count(sureness, right=token == guess)
            self._usual.count(0, right=token == guess)
            if token != guess:
                break
        self._guesses, self._sureness, self._chances = [], [], []
        self._tokens, self._length = tokens, len(tokens)
        self._most = min(most, self.source.num_ctx - self._length)
        draft = self._lookup.propose(tokens, most)
        self._looked_up = draft.chances[0] if draft.chances else 0.0
        return draft

    def end(self, answer: Sequence[int]) -> None:
        """The answer has ended: its sequence is free."""
        self._lookup.end(answer)
        self._leave()

    # -- called by the source ------------------------------------------------------------------------------------------

    def wants(self, prices: StepPrices, guess: float | None, left: float) -> bool:
        """Whether the source should guess now, where a guess takes so long (None: not known yet).

        Then `next_part` says what to compute. `left`: the seconds that guesses of this answer may lose.
        """
        usual = self._usual.chance(0)
        self._most = min(self._most, PROBED if guess is None else prices.affordable(left, guess))
        if self._most < 1 or self._looked_up > usual:
            return False
        self._limit = best_depth(prices, usual, guess or 0.0)
        if self._limit:
            self._pause, self._look_at = FIRST_PAUSE, 0
        elif self._length >= self._look_at:
            self._look_at = self._length + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._limit = PROBED
        return self._limit > 0 and self._align()

    @abstractmethod
    def _align(self) -> bool:
        """Have the sequence hold nothing but what belongs to the context. False where it has none."""

    @abstractmethod
    def _leave(self) -> None:
        """Give the sequence back, if there is one."""

    @abstractmethod
    def next_part(self, most: int) -> DraftPart:
        """What to compute next: what is missing of the context, up to `most` tokens of it, then the last guess."""

    @abstractmethod
    def _computed(self, part: DraftPart, guess: Guess) -> bool:
        """The sequence holds a part; whether the context was complete with it, so that the guess is one."""

    def take(self, part: DraftPart, guess: Guess) -> bool:
        """Take the token computed behind a part. Returns whether it is a guess, rather than context."""
        if not self._computed(part, guess):
            return False  # a long prompt: the rest comes between other steps
        sureness = int(100 * guess.probability)
        self._guesses.append(guess.token)
        self._sureness.append(sureness)
        self._chances.append((self._chances[-1] if self._chances else 1.0) * self._sure.chance(sureness))
        return True

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
