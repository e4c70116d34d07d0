"""DraftModel: a smaller model of the same vocabulary, which guesses tokens for several answers side by side."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ollama_engine.input import Batch, FloatArray, Int32Array
from ollama_engine.kvcache import Cache
from ollama_engine.runner.execute.executor import Executor
from ollama_engine.runner.schedule.steering import Draft
from ollama_engine.runner.schedule.step_costs import StepCosts, StepPrices
from ollama_engine.runner.speculative.acceptance import Acceptance
from ollama_engine.runner.speculative.draft_depth import MOST_AHEAD

if TYPE_CHECKING:
    from ollama_engine.runner.speculative.model_drafter import ModelDrafter

__all__ = ["DraftModel", "DraftPart"]

log = logging.getLogger(__name__)

SURE = {0: 0.2, 20: 0.4, 40: 0.55, 60: 0.7, 75: 0.8, 85: 0.9, 95: 0.97}
"""Chances of a guess before anything is known, by how likely the draft model finds it, in percent."""
USUAL = {0: 0.7}
"""The same for any guess."""


class DraftPart(NamedTuple):
    """Tokens that the draft model computes in one of its sequences, from this position on."""

    sequence: int
    position: int
    tokens: Sequence[int]


class _History(NamedTuple):
    """What a free sequence holds: the tokens of an answer that has ended, for those that begin alike."""

    namespace: str
    tokens: Int32Array


class DraftModel:
    """Computes with a cache of its own, which has room for `n_sequences` contexts of `num_ctx` tokens.

    The engine's thread calls it while no step is in flight. Guesses are tokens below `n_vocab`.
    """

    def __init__(
        self, executor: Executor, cache: Cache, n_sequences: int, num_ctx: int, n_vocab: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self._executor = executor
        self._cache = cache
        self._clock = clock
        self._n_vocab = n_vocab
        self.num_ctx = num_ctx
        self._free = {number: _History("", np.empty(0, np.int32)) for number in range(n_sequences)}
        self._costs = StepCosts()
        self._failed = False
        # What is known of the guesses for all answers.
        self.sure, self.usual = Acceptance(expected=SURE), Acceptance(expected=USUAL)

    # -- sequences -----------------------------------------------------------------------------------------------------

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

    def cut(self, sequence: int, n: int) -> int:
        """Have a sequence hold its first `n` tokens at most; returns how many it holds."""
        n = n if self._cache.can_resume(sequence, n) else 0
        self._cache.remove(sequence, n)
        return n

    def give_back(self, sequence: int, tokens: Sequence[int], namespace: str) -> None:
        """A sequence, which holds these tokens, is free."""
        self._free[sequence] = _History(namespace, np.array(tokens, np.int32))

    # -- guessing ------------------------------------------------------------------------------------------------------

    def make(self, drafters: Mapping[int, ModelDrafter], prices: StepPrices) -> dict[int, Draft]:
        """Drafts for those of these answers, by key, for which guessing pays: see `ModelDrafter`."""
        if self._failed:
            return {}
        guess = self._costs.seconds(len(drafters)) or 0.0
        guessing = {key: drafter for key, drafter in drafters.items() if drafter.wants(prices, guess)}
        try:
            self._guess(list(guessing.values()), prices)
        except Exception as error:
            # Whatever it is, answers go on without it.
            with suppress(Exception):  # a handler that raises must not end the engine
                log.error("the draft model failed, and guesses no more: %s", error)
            self._failed = True
            return {}
        return {key: drafter.draft for key, drafter in guessing.items()}

    def _guess(self, active: list[ModelDrafter], prices: StepPrices) -> None:
        for _ in range(MOST_AHEAD):
            parts = [drafter.next_part(self._executor.batch_size) for drafter in active]
            if not parts:
                return
            for drafter, part, row in zip(active, parts, self._compute(parts), strict=True):
                drafter.take(part, *_best(row[: self._n_vocab]))
            cost = (self._costs.seconds(len(active)) or 0.0) / len(active) + prices.row
            worth = cost * prices.n_rows / prices.plain
            active = [drafter for drafter in active if drafter.goes_on(worth)]

    def _compute(self, parts: Sequence[DraftPart]) -> list[FloatArray]:
        """The logits behind each part."""
        begin, reused = self._clock(), self._executor.counts.reused
        lengths = [len(part.tokens) for part in parts]
        runs = [np.arange(part.position, part.position + len(part.tokens), dtype=np.int32) for part in parts]
        self._executor.prepare(
            batch := Batch(
                np.array([token for part in parts for token in part.tokens], np.int32),
                np.concatenate(runs),
                np.repeat(np.array([part.sequence for part in parts], np.int32), lengths),
                np.cumsum(lengths, dtype=np.int32) - np.int32(1),
            )
        )
        self._executor.launch(batch.tokens)
        with self._executor.results() as logits:
            rows = list(logits.copy())
        if len(batch) == len(parts) and self._executor.counts.reused > reused:
            self._costs.note(len(parts), self._clock() - begin)
        return rows


def _n_common(context: Int32Array, held: Int32Array) -> int:
    """How many tokens two texts begin with alike."""
    n = min(len(context), len(held))
    differs = np.flatnonzero(context[:n] != held[:n])
    return int(differs[0]) if len(differs) else n


def _best(logits: FloatArray) -> tuple[int, float]:
    """(the likeliest token, its probability)."""
    token = int(logits.argmax())
    probability = float(1 / np.exp(logits - logits[token]).sum())
    return token, probability if probability > 0 else 0.0  # NaN, too
