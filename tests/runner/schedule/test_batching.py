"""Batching: pieces become rows, and rows know whose they are. A step that follows is the one that planning gives."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_engine.runner.request.channel import RequestChannel
from ollama_engine.runner.request.inputs import Inputs, Lookahead
from ollama_engine.runner.request.options import OnOverflow, RequestOptions
from ollama_engine.runner.schedule.batching import Step, all_that_goes_on, assemble, best_needed, follow
from ollama_engine.runner.schedule.scheduler import BatchLimits, Scheduled, plan
from ollama_engine.runner.schedule.sequence import Generation, ScheduledRequest
from ollama_engine.runner.schedule.text_emitter import TextEmitter
from ollama_engine.sample import Sampler, SamplingParams
from tests.runner.fakes import Events


def sequence(
    key: int, slot: int, tokens: list[int], submitted: int = 0, sampled: list[int] | None = None
) -> ScheduledRequest:
    made = ScheduledRequest(
        channel=RequestChannel(Events()), inputs=Inputs.text(tokens), num_ctx=99, key=key, slot=slot
    )
    made.submitted, made.sampled = submitted, sampled or []
    return made


def test_prompts_and_answers_in_one_batch() -> None:
    decoding = sequence(4, 7, [1, 2, 3], submitted=4, sampled=[50, 51])
    whole = sequence(5, 2, [10, 11, 12])
    part = sequence(6, 0, [20, 21, 22, 23, 24], submitted=1)
    step = assemble(9, (Scheduled(4, 1, 1), Scheduled(5, 3, 3), Scheduled(6, 2, 0)), {4: decoding, 5: whole, 6: part})
    assert step.number == 9
    assert step.batch.positions.tolist() == [4, 0, 1, 2, 1, 2]
    assert step.batch.sequences.tolist() == [7, 2, 2, 2, 0, 0]
    assert step.batch.outputs.tolist() == [0, 1, 2, 3]
    assert step.tokens().tolist() == [51, 10, 11, 12, 21, 22]
    assert step.tokens().dtype == np.int32
    assert step.prompt_tokens == 5
    assert [entry.decoding for entry in step.entries] == [True, False, False]


def test_only_the_last_row_of_a_prompt_has_logits() -> None:
    step = assemble(
        0, (Scheduled(1, 3, 1), Scheduled(2, 2, 1)), {1: sequence(1, 0, [1, 2, 3]), 2: sequence(2, 1, [4, 5])}
    )
    assert step.batch.outputs.tolist() == [2, 4]


def test_tokens_are_read_when_the_step_starts() -> None:
    """A step is planned before the token that it computes is known."""
    asked = sequence(1, 0, [5], submitted=1)
    step = assemble(0, (Scheduled(1, 1, 1),), {1: asked})
    asked.submitted += 1
    assert step.tokens().tolist() == [0]
    asked.sampled.append(42)
    assert step.tokens().tolist() == [42]


def test_who_has_left_computes_nothing_of_value() -> None:
    gone, here = sequence(1, 0, [5, 6]), sequence(2, 1, [7])
    step = assemble(0, (Scheduled(1, 2, 1), Scheduled(2, 1, 1)), {1: gone, 2: here})
    gone.epoch += 1
    assert step.tokens().tolist() == [0, 0, 7]
    assert step.alive
    here.epoch += 1
    assert not step.alive


def test_rows_of_which_the_best_logits_are_enough() -> None:
    """Rows that are read are needed whole; of the row behind them a token is drawn, and of all rows of a draft."""
    scored = sequence(5, 2, [10, 11, 12])
    writing = answer(6)
    step = assemble(0, (Scheduled(5, 3, 3), Scheduled(6, 2, 2)), {5: scored, 6: writing})
    assert step.needed == (0, 0, 0, 1, 1)
    writing.submitted = 0
    with_prompt = assemble(0, (Scheduled(6, 3, 3),), {6: writing})
    assert with_prompt.needed == (0, 0, 1)


def test_states_are_kept_behind_the_rows_before_guesses() -> None:
    """The first ones of a long draft; rows of tokens that are known need none but for the last of them."""
    writing = answer(6)
    writing.draft = (1,) * 3
    step = assemble(0, (Scheduled(6, 4, 4),), {6: writing}, recurrent=True)
    assert step.batch.returns is not None
    assert step.batch.returns.tolist() == [0, 1, 2]
    writing.sampled, writing.draft = [5, 6], (1,) * 6
    step = assemble(0, (Scheduled(6, 8, 7),), {6: writing}, recurrent=True)
    assert step.batch.returns is not None
    assert step.batch.returns.tolist() == [1, 2, 3, 4]
    writing.draft = ()
    assert assemble(0, (Scheduled(6, 2, 1),), {6: writing}, recurrent=True).batch.returns is None


@pytest.mark.parametrize("field", ["constraint", "processors"])
def test_masks_and_processors_are_about_all_tokens(field: str) -> None:
    writing = answer(6)
    assert best_needed(writing) == 1
    setattr(writing, field, object())
    assert best_needed(writing) == 0


def test_log_probabilities_are_about_all_tokens() -> None:
    writing = answer(6)
    writing.params = SamplingParams(temperature=0, logprobs=0)
    assert best_needed(writing) == 0


# -- steps that follow -------------------------------------------------------------------------------------------------


def answer(
    key: int, n_prompt: int = 3, num_ctx: int = 99, max_tokens: int | None = None, overflow: OnOverflow = "error"
) -> Generation:
    """One whose first token has been sampled."""
    params = SamplingParams(temperature=0, max_tokens=max_tokens)
    made = Generation(
        channel=RequestChannel(Events()), inputs=Inputs.text([1] * n_prompt), num_ctx=num_ctx,
        options=RequestOptions(overflow),
        params=params, sampler=Sampler(params, 8), emitter=TextEmitter(cast(Any, None)), eog_ids=frozenset(),
        n_prompt=n_prompt, key=key, slot=key,
    )  # fmt: skip
    made.submitted, made.sampled, made.n_generated = n_prompt, [5], 1
    return made


def planned(number: int, sequences: list[Generation]) -> Step | None:
    """What comes next without any step before."""
    candidates = [found for generation in sequences if (found := generation.candidate(Lookahead())) is not None]
    if len(candidates) < len(sequences):
        return None
    return assemble(
        number,
        plan(candidates, BatchLimits(64, 64, 10_000)).scheduled,
        {generation.key: generation for generation in sequences},
    )


def launch(step: Step) -> None:
    for entry in step.entries:
        entry.sequence.submitted += entry.n
        entry.sequence.awaited += entry.outputs


def step_outputs(step: Step) -> None:
    for entry in step.entries:
        assert isinstance(entry.sequence, Generation)
        entry.sequence.awaited -= 1
        entry.sequence.sampled.append(6)
        entry.sequence.n_generated += 1


@st.composite
def answers(draw: st.DrawFn) -> list[Generation]:
    limits = st.one_of(st.none(), st.integers(2, 9))
    overflow: st.SearchStrategy[OnOverflow] = st.sampled_from(["error", "truncate", "shift"])
    return [
        answer(
            key, n_prompt := draw(st.integers(1, 5)), n_prompt + draw(st.integers(2, 12)), draw(limits), draw(overflow)
        )
        for key in range(draw(st.integers(1, 5)))
    ]


@given(answers())
def test_a_step_that_follows_is_what_planning_gives(sequences: list[Generation]) -> None:
    step = planned(0, sequences)
    while step is not None:
        launch(step)
        step.check()
        expected = planned(step.number + 1, sequences)
        following = follow(step.number + 1, step)
        if following is None:
            # A context that is shifted has a place for one more than is counted on.
            full = [
                generation.options.on_overflow == "shift" and generation.submitted == generation.num_ctx - 1
                for generation in sequences
            ]
            assert expected is None or any(full)
            return
        assert expected is not None
        assert following.entries == expected.entries
        assert (following.number, following.decoding) == (expected.number, expected.decoding)
        for name in ("tokens", "positions", "sequences", "outputs"):
            mine, theirs = getattr(following.batch, name), getattr(expected.batch, name)
            assert mine.dtype == theirs.dtype
            assert mine.tolist() == theirs.tolist()
        step_outputs(step)
        step = following


def test_nothing_follows_where_somebody_has_left() -> None:
    asked, other = answer(1), answer(2)
    step = planned(0, [asked, other])
    assert step is not None
    launch(step)
    assert follow(1, step) is not None
    other.epoch += 1
    assert follow(1, step) is None


@pytest.mark.parametrize("n", [1, 2])
def test_nothing_follows_a_prompt(n: int) -> None:
    asked = sequence(1, 0, [5, 6])
    step = assemble(0, (Scheduled(1, n, n - 1),), {1: asked})
    launch(step)
    assert follow(1, step) is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(0, 4)), min_size=1, max_size=5))
def test_all_that_answers_have_is_what_a_plan_chooses(answers: list[tuple[int, int, int]]) -> None:
    """(tokens computed, tokens known behind them, draft) of each."""
    made = []
    for key, (computed, known, drafted) in enumerate(answers):
        each = answer(key)
        each.submitted, each.sampled = 3 + computed, list(range(computed + known))
        each.draft = tuple(range(drafted))
        made.append(each)
    total = sum(known + drafted for _, known, drafted in answers)
    limits = BatchLimits(batch_size=64, max_outputs=64, free_cells=total, headroom=16 * len(made))
    candidates = [candidate for each in made if (candidate := each.candidate(Lookahead())) is not None]
    assert all_that_goes_on(made, total) == plan(candidates, limits).scheduled
    assert all_that_goes_on(made, total - 1) is None
    made[0].submitted = 2  # still a prompt
    assert all_that_goes_on(made, 99) is None
    made[0].submitted, made[0].num_ctx = 3 + answers[0][0], made[0].known + answers[0][2] - 1
    assert all_that_goes_on(made, 99) is None
