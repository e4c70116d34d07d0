"""Which answers are drafted for, and which steps count as a measurement."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock, create_autospec, patch

import numpy as np
import pytest

from ollama_engine.input import Batch
from ollama_engine.runner.core.request_queue import RequestQueue
from ollama_engine.runner.core.speculation import Speculation
from ollama_engine.runner.core.step_output import StepOutput
from ollama_engine.runner.schedule.sequence import Generation
from ollama_engine.runner.schedule.steering import Draft
from ollama_engine.runner.schedule.step_costs import StepPrices
from ollama_engine.runner.speculative.acceptance import Acceptance
from ollama_engine.runner.speculative.draft_model import DraftModel, ModelDrafter
from ollama_engine.runner.speculative.guessing import DraftPart, Guess, GuessingDrafter, GuessSource
from ollama_engine.runner.speculative.lookup import LookupDrafter
from ollama_engine.runner.speculative.next_tokens import MOST_WAITING, HeadDrafter, NextTokenSource


def test_nothing_is_drafted_for_an_answer_that_ends_with_the_step() -> None:
    """Else each end of an answer would scrap the step that is prepared for all others."""
    ends, goes_on = (
        cast(Any, create_autospec(Generation, key=key, decoding=True, draft=(), known=9, submitted=8, awaited=0))
        for key in (0, 1)
    )
    queue = SimpleNamespace(
        running={0: ends, 1: goes_on},
        propose=lambda answers: {each.key: Draft((5,)) for each in answers if each is ends},
    )
    speculation = Speculation(cast(RequestQueue, queue), 32, lambda: 0.0)
    assert not speculation.draft([StepOutput(ends, reason="stop"), StepOutput(goes_on, (3,))])
    assert ends.draft == ()
    assert speculation.draft([StepOutput(ends, (4,)), StepOutput(goes_on, (3,))])
    assert ends.draft == (5,)


@pytest.mark.parametrize("guesses", [(), (3,)])
def test_a_constraint_that_raises_at_the_guesses_of_a_source_ends_its_request_alone(guesses: tuple[int, ...]) -> None:
    error = KeyError("told to")
    made = {0: Draft((5,), (0.9,)), 1: Draft((6,), (0.9,))}
    source = Mock(make=lambda drafters, prices, left: (made, 0.0))
    raises, other = (
        cast(Any, create_autospec(
            Generation, key=key, decoding=True, draft=(), known=9, submitted=8, awaited=0, constraint=None,
            drafter=SimpleNamespace(source=source),
        ))
        for key in (0, 1)
    )  # fmt: skip
    raises.constraint = SimpleNamespace(foresee=Mock(side_effect=error))
    queue: Any = SimpleNamespace(
        running={0: raises, 1: other}, propose=lambda answers: {0: Draft(guesses), 1: Draft()},
        end=Mock(side_effect=lambda sequence, error: queue.running.pop(sequence.key)),
    )  # fmt: skip
    speculation = Speculation(queue, 32, lambda: 0.0)
    speculation._budget.begin({0, 1})
    with patch.object(speculation._costs, "prices", return_value=StepPrices(2, 1.0, lambda rows: 1.01)):
        assert speculation.draft([StepOutput(raises, (4,)), StepOutput(other, (4,))])
    queue.end.assert_called_once_with(raises, error)
    assert other.draft == (6,)


def test_an_answer_that_a_step_leaves_out_keeps_its_account() -> None:
    queue = SimpleNamespace(running={0: None, 1: None})
    speculation = Speculation(cast(RequestQueue, queue), 32, lambda: 0.0)

    def step(*keys: int) -> None:
        entries = tuple(SimpleNamespace(sequence=SimpleNamespace(key=key), decoding=False) for key in keys)
        batch = Batch(*np.zeros((4, len(keys)), np.int32))
        noted: Any = SimpleNamespace(entries=entries, batch=batch, decoding=False, drafted=False, built=False)
        speculation.note(noted, [], 0.0)

    step(0, 1)
    speculation._budget.note({0: (1, 0)}, 1.5)
    left = dict(speculation._budget._accounts)
    step(1)
    step(0, 1)
    assert speculation._budget._accounts == left


@pytest.mark.parametrize("prepared", [0, 1])
def test_prices_are_those_of_a_step_with_the_tokens_that_are_forced(prepared: int) -> None:
    """Two of them, whether or not a step with one row was prepared before they were known."""
    answer: Any = create_autospec(
        Generation, key=0, decoding=True, draft=(), known=12, submitted=9 + prepared, awaited=prepared
    )
    queue: Any = SimpleNamespace(running={0: answer}, propose=lambda answers: {0: Draft((5,), (0.9,))})
    speculation = Speculation(queue, 32, lambda: 0.0)
    with patch.object(speculation._costs, "prices", return_value=None) as prices:
        speculation.draft([StepOutput(answer, (1, 2, 3))])
    prices.assert_called_once_with(1, 2)


def test_a_guess_is_compared_with_the_token_behind_it_only() -> None:
    sequence: Any = SimpleNamespace(key=0)
    entries = (SimpleNamespace(sequence=sequence, decoding=True),)
    speculation = Speculation(cast(RequestQueue, SimpleNamespace(running={0: None})), 32, lambda: 0.0)

    def step(*, decoding: bool) -> None:
        noted: Any = SimpleNamespace(
            entries=entries, batch=Batch(*np.zeros((4, 1), np.int32)), decoding=decoding, drafted=False, built=False
        )
        speculation.note(noted, [StepOutput(sequence, (7,))], 0.0)

    step(decoding=True)
    before = dict(speculation._budget._accounts)
    speculation._first_guesses = {0: 5}
    entries[0].decoding = False
    step(decoding=False)  # beside a prompt: it does not count
    entries[0].decoding = True
    step(decoding=True)
    assert speculation._budget._accounts == before


def test_what_the_next_step_waits_for_is_a_cost_of_the_drafts_before_it() -> None:
    """But not the graph that it builds, nor rows that it has for tokens that are forced."""
    entries = (SimpleNamespace(sequence=SimpleNamespace(key=0), decoding=True),)
    speculation = Speculation(cast(RequestQueue, SimpleNamespace(running={0: None})), 32, lambda: 0.0)
    now = 0.0

    def step(rows: int, seconds: float, *, drafted: bool = False, built: bool = False) -> None:
        nonlocal now
        now += seconds
        batch = Batch(*np.zeros((4, rows), np.int32))
        noted: Any = SimpleNamespace(entries=entries, batch=batch, decoding=True, drafted=drafted, built=built)
        speculation.note(noted, [StepOutput(cast(Any, entries[0].sequence), (1,), drafted=rows - 1)], now)

    for _ in range(40):
        step(1, 10)
        step(4, 16)
    for _ in range(2):  # the shorter of the first two counts
        step(3, 12, drafted=True)
        step(1, 19, built=True)
    assert speculation._costs.seconds(3, drafted=True) == pytest.approx(12, rel=0.02)
    for _ in range(40):
        step(3, 12, drafted=True)
        step(1, 13)
        step(1, 10)
        step(3, 12, drafted=True)
        step(4, 19)
        step(4, 16)
    assert speculation._costs.seconds(3, drafted=True) == pytest.approx(15, rel=0.05)
    assert speculation._costs.seconds(1) == pytest.approx(10, rel=0.05)


def test_drafters_that_guess_nothing_are_asked_seldom_until_a_guess_comes_true() -> None:
    """Asking takes 3 % of a step."""
    now, asked = 0.0, 0
    sequence: Any = create_autospec(
        Generation, key=0, decoding=True, draft=(), known=9, submitted=8, awaited=0, drafter=None
    )
    entries = (SimpleNamespace(sequence=sequence, decoding=True),)

    def propose(answers: Sequence[Any]) -> dict[int, Draft]:
        nonlocal now, asked
        now, asked = now + 0.03, asked + 1
        return {0: Draft()}

    queue: Any = SimpleNamespace(running={0: sequence}, propose=propose)
    speculation = Speculation(queue, 32, lambda: now)

    def asks(steps: int, *, accepted: int = 0) -> int:
        nonlocal now
        before = asked
        for _ in range(steps):
            now += 1
            batch = Batch(*np.zeros((4, 1 + accepted), np.int32))
            step: Any = SimpleNamespace(
                entries=entries, batch=batch, decoding=not accepted, drafted=accepted > 0, built=False
            )
            outputs = [StepOutput(sequence, (1,), drafted=accepted, accepted=accepted)]
            speculation.note(step, outputs, now)
            speculation.draft(outputs)
        return asked - before

    assert asks(40) < 20
    assert 100 < asks(700) <= 120, "half a percent of the time"
    speculation._rest = 0
    assert asks(4, accepted=2) == 4
    assert asks(3) == 3
    assert asks(40) < 20


@pytest.mark.parametrize("built", [False, True])
def test_an_answer_drafts_beside_a_prompt_what_its_rows_are_worth(built: bool) -> None:
    """A row of a prompt takes a tenth of what a step of the answer alone does."""
    now = 0.0
    answer: Any = create_autospec(
        Generation, key=0, decoding=True, draft=(), known=9, submitted=8, awaited=0, drafter=None
    )
    prompt: Any = create_autospec(Generation, key=1, decoding=False)
    guesses = Draft((5, 6, 7, 8), (0.9, 0.8, 0.5, 0.06))
    queue: Any = SimpleNamespace(running={0: answer}, propose=lambda answers: {0: guesses})
    speculation = Speculation(queue, 64, lambda: now)

    def step(*of: Any, rows: int = 1, drafted: int = 0, accepted: int = 0, built: bool = False) -> bool:
        nonlocal now
        now += rows / 10 if prompt in of else 1
        entries = tuple(SimpleNamespace(sequence=each, decoding=each is answer) for each in of)
        noted: Any = SimpleNamespace(
            entries=entries, batch=Batch(*np.zeros((4, rows), np.int32)), decoding=False, drafted=drafted > 0,
            built=built,
        )  # fmt: skip
        answer.draft = ()
        speculation._rest = 0
        outputs = [StepOutput(answer, (1,), drafted=drafted, accepted=accepted)]
        speculation.note(noted, outputs, now)
        return speculation.draft(outputs)

    for _ in range(3):
        step(answer)
    queue.running[1] = prompt
    assert not speculation.draft([StepOutput(answer, (1,))]), "what a row takes is not known"
    assert not step(answer, prompt, rows=2), "nor is it from a step of few rows"
    assert step(answer, prompt, rows=64)
    assert answer.draft == (5, 6, 7), "a guess of 6 % is not worth a tenth of a step"
    wrong = 0
    while step(answer, prompt, rows=67, drafted=3, built=built):
        wrong += 3
        assert wrong < 60
    assert wrong >= 9, "the account pays a tenth for each"


@pytest.mark.parametrize("by", ["draft model", "head"])
@pytest.mark.parametrize("read", [2, 40, 400])
def test_a_source_that_read_long_before_its_first_guess_goes_on_guessing(by: str, read: int) -> None:
    """Each guess is right and takes a thirtieth of a step, and so does each token that is read."""
    now = 0.0
    cache: Any = SimpleNamespace(can_resume=lambda sequence, n: True, remove=lambda sequence, n: None)
    executor: Any = SimpleNamespace(batch_size=512)
    context = list(range(1000, 1001 + read))
    source: GuessSource
    drafter: GuessingDrafter
    if by == "head":
        source = NextTokenSource([executor], cache, 1, 4096, 4096)
        drafter = HeadDrafter(source, LookupDrafter(Acceptance()))
        waiting = min(read, MOST_WAITING)
        drafter.read_hidden(read - waiting, np.zeros((waiting, 4), np.float32), 0)
    else:
        source = DraftModel(executor, cache, 1, 4096, 4096)
        drafter = ModelDrafter(source, LookupDrafter(Acceptance()), "")
    source._clock = lambda: now

    def compute(parts: Sequence[DraftPart]) -> list[Guess]:
        nonlocal now
        n = sum(len(part.tokens) for part in parts)
        now += n / 30
        if n == 1:
            source._costs.note(1, n / 30)
        return [Guess(part.tokens[-1] + 1, 0.99, np.zeros((1, 4), np.float32)) for part in parts]

    answer: Any = create_autospec(
        Generation, key=0, decoding=True, draft=(), drafter=drafter, known=1, submitted=0, awaited=0, constraint=None
    )
    queue: Any = SimpleNamespace(running={0: answer}, propose=lambda answers: {0: drafter.propose(context, 20)})
    speculation = Speculation(queue, 32, lambda: now)
    speculation._costs.note(1, 1.0)
    drafted = 0
    with patch.object(source, "_compute", compute):
        while len(context) < read + 160:
            n, answer.draft = len(answer.draft), ()
            now += 1 + n / 10
            if isinstance(drafter, HeadDrafter):
                drafter.read_hidden(len(context) - 1, np.zeros((1 + n, 4), np.float32), 0)
            context += range(context[-1] + 1, context[-1] + 2 + n)
            step: Any = SimpleNamespace(
                entries=(SimpleNamespace(sequence=answer, decoding=True),), decoding=True, drafted=n > 0, built=False,
                batch=Batch(*np.zeros((4, 1 + n), np.int32)),
            )  # fmt: skip
            outputs = [StepOutput(answer, tuple(context[-1 - n :]), drafted=n, accepted=n)]
            speculation.note(step, outputs, now)
            speculation.draft(outputs)
            drafted += n
    assert drafted > 120
