"""ModelDrafter: when the draft model is asked, how far, and what its sequence holds then. No model: numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pytest

from ollama_engine.input import Int32Array
from ollama_engine.runner.schedule.step_costs import StepPrices
from ollama_engine.runner.speculative.acceptance import Acceptance
from ollama_engine.runner.speculative.draft_depth import MOST_AHEAD, best_depth
from ollama_engine.runner.speculative.draft_model import DraftModel, ModelDrafter
from ollama_engine.runner.speculative.guessing import LONGEST_PAUSE, PROBED, SURE, USUAL, DraftPart, Guess, GuessSource
from ollama_engine.runner.speculative.lookup import LookupDrafter

PRICES = StepPrices(1, 10.0, lambda rows: 10.0 + rows)


class Source:
    """Stands for a draft model with one sequence, and notes what that holds."""

    num_ctx = 4096

    def __init__(self) -> None:
        self.sure, self.usual = Acceptance(expected=SURE), Acceptance(expected=USUAL)
        self.held = 0
        self.computed = 0
        self.free = True

    def take(self, context: Int32Array, namespace: str) -> tuple[int, int] | None:
        free, self.free = self.free, False
        return (0, self.held) if free else None

    def cut(self, sequence: int, n: int) -> int:
        assert n <= self.held, "more than was computed"
        self.held = n
        return n

    def give_back(self, sequence: int, tokens: list[int], namespace: str) -> None:
        self.free = True

    def guess(self, drafter: ModelDrafter, tokens: list[int], *guesses: int, sure: float = 0.9) -> None:
        """What `DraftModel.make` does, with these guesses."""
        for number, guess in enumerate(guesses):
            part = drafter.next_part(512)
            assert part.position == self.held
            assert part.tokens == (tokens[self.held :] if number == 0 else [guesses[number - 1]])
            self.held += len(part.tokens)
            self.computed += len(part.tokens)
            drafter.take(part, Guess(guess, sure))


def drafter_of(source: Source) -> ModelDrafter:
    return ModelDrafter(cast(DraftModel, source), LookupDrafter(Acceptance()), "")


@pytest.mark.parametrize("chance", [0.05, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("guess", [0.1, 1.0, 5.0])
def test_the_depth_gives_most_tokens_a_second(chance: float, guess: float) -> None:
    def speed(depth: int) -> float:
        return sum(chance**i for i in range(depth + 1)) / (PRICES.drafted(1 + depth) + depth * guess)

    found = best_depth(PRICES, chance, guess)
    best = max(range(1, MOST_AHEAD + 1), key=speed)
    assert found == (best if speed(best) > 1.05 / PRICES.plain else 0)


def test_parts_of_several_answers_fit_one_batch() -> None:
    rows: list[list[int]] = []

    def compute(parts: Sequence[DraftPart]) -> list[Guess]:
        rows.append([len(part.tokens) for part in parts])
        return [Guess(1, 0.9)] * len(parts)

    model = GuessSource(cast(Any, SimpleNamespace(batch_size=8)), cast(Any, None), 4096, 100)
    drafters = {key: drafter_of(Source()) for key in range(3)}
    for drafter in drafters.values():
        drafter.propose(list(range(20)), 20)
    with patch.object(model, "_compute", compute):
        model.make(drafters, PRICES, dict.fromkeys(drafters, 99.0))
    assert rows == [[2, 2, 2]]


def test_guesses_take_time_of_answers_and_reading_does_not() -> None:
    now = 0.0

    def compute(parts: Sequence[DraftPart]) -> list[Guess]:
        nonlocal now
        now += sum(len(part.tokens) for part in parts)
        return [Guess(1, 0.9)] * len(parts)

    model = GuessSource(cast(Any, SimpleNamespace(batch_size=512)), cast(Any, None), 4096, 100, lambda: now)
    drafter, tokens = drafter_of(Source()), list(range(400))
    with patch.object(model, "_compute", compute):
        drafter.propose(tokens, 20)
        drafts, seconds = model.make({7: drafter}, PRICES, {7: 99.0})
        assert len(drafts[7].tokens) == PROBED
        assert (now, seconds) == (400 + PROBED - 1, PROBED - 1)
        tokens += [1, 1, 5]  # both guesses are right, of which it holds one
        cast(Source, drafter.source).held = 401
        drafter.propose(tokens, 20)
        drafts, seconds = model.make({7: drafter}, PRICES, {7: 99.0})
    assert seconds == 2 + len(drafts[7].tokens) - 1


def test_right_guesses_stay_and_wrong_ones_are_removed() -> None:
    source = Source()
    drafter, tokens = drafter_of(source), [10, 11, 12]
    drafter.propose(tokens, 20)
    assert drafter.wants(PRICES, 0.5, 99.0)
    source.guess(drafter, tokens, 13, 14, 15)
    assert drafter.draft.tokens == (13, 14, 15)
    tokens = [*tokens, 13, 14, 20]
    drafter.propose(tokens, 20)
    assert drafter.wants(PRICES, 0.5, 99.0)
    assert source.held == 5, "three of the prompt, 13 and 14"
    source.guess(drafter, tokens, 21)
    assert source.computed == 5 + 1
    drafter.propose([10, 20], 20)  # a shift took tokens out of the middle
    assert drafter.wants(PRICES, 0.5, 99.0)
    assert source.held == 0
    drafter.end([])
    assert source.free


def test_a_model_that_is_always_wrong_is_seldom_asked() -> None:
    source, asked = Source(), 0
    drafter, tokens = drafter_of(source), [10, 11, 12]
    rng = np.random.default_rng(0)
    for _ in range(4 * LONGEST_PAUSE):
        tokens = [*tokens, int(rng.integers(100, 1 << 20))]
        drafter.propose(tokens, 20)
        if drafter.wants(PRICES, 0.5, 99.0):
            asked += 1
            source.guess(drafter, tokens, 5, 6, 7, 8)
    assert 5 < asked < 25
    assert source.usual.chance(0) < 0.2
    other = drafter_of(source)
    drafter.end([])
    other.propose([1, 2], 20)
    assert other.wants(PRICES, 0.5, 99.0), "another answer looks once"
    other.propose([1, 2, 3], 20)
    assert not other.wants(PRICES, 0.5, 99.0)


def test_no_more_is_guessed_than_may_be_lost() -> None:
    source = Source()
    drafter = drafter_of(source)
    drafter.propose([1, 2, 3], 20)
    first = PRICES.drafted(2) - PRICES.plain + 0.5
    assert not drafter.wants(PRICES, 0.5, first - 0.01)
    for left, most in ((first, 1), (first + 2 * (PRICES.row + 0.5), 3)):
        drafter.propose([1, 2, 3], 20)
        assert drafter.wants(PRICES, 0.5, left + 0.001)
        assert drafter._most == most
    drafter.propose([1, 2, 3], 20)
    assert drafter.wants(PRICES, None, 99.0)
    assert drafter._most == PROBED, "what a guess takes is not known"


def test_lookup_that_is_surer_is_taken() -> None:
    source = Source()
    text = list(range(40))
    drafter = drafter_of(source)
    draft = drafter.propose([*text, *text[:30]], 20)
    assert draft.tokens[:3] == (30, 31, 32)
    assert not drafter.wants(PRICES, 0.01, 99.0)


def test_without_a_sequence_nothing_is_guessed() -> None:
    """Requests that were preempted hold theirs."""
    source = Source()
    source.free = False
    drafter = drafter_of(source)
    drafter.propose([1, 2, 3], 20)
    assert not drafter.wants(PRICES, 0.5, 99.0)


def test_nothing_is_guessed_beyond_the_limits() -> None:
    source: Any = Source()
    drafter = drafter_of(source)
    drafter.propose([1, 2, 3], 0)
    assert not drafter.wants(PRICES, 0.5, 99.0)
    drafter.propose([1, 2, 3], 2)
    assert drafter.wants(PRICES, 0.5, 99.0)
    source.guess(drafter, [1, 2, 3], 4)
    assert drafter.goes_on(0.0)
    source.guess_more = drafter.next_part(512)
    source.held += 1
    drafter.take(source.guess_more, Guess(5, 0.9))
    assert not drafter.goes_on(0.0), "two places are left"
