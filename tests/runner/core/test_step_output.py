"""Step output: which sequence gets which row, which ones end, and that unwanted results are dropped."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from ollama_engine.errors import SamplingError
from ollama_engine.runner.core.step_output import StepOutput, outcome, step_outputs
from ollama_engine.runner.execute.executor import FloatArray
from ollama_engine.runner.request.channel import RequestChannel
from ollama_engine.runner.request.inputs import Inputs
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.runner.request.results import Chunk
from ollama_engine.runner.schedule.batching import Step, assemble
from ollama_engine.runner.schedule.row_readers import AllRows
from ollama_engine.runner.schedule.scheduler import Scheduled
from ollama_engine.runner.schedule.scoring import Scoring
from ollama_engine.runner.schedule.sequence import Generation, ScheduledRequest
from ollama_engine.runner.schedule.text_emitter import TextEmitter
from ollama_engine.sample import Sampler, SamplingParams
from tests.runner.fakes import Events

N_VOCAB = 8
END = 7
USUAL = RequestOptions()


class Letters:
    """Token 0 is "a", 1 is "b", and so on."""

    def push(self, token: int) -> str:
        return chr(ord("a") + token)

    def flush(self) -> str:
        return ""


def generation(
    key: int, n_prompt: int = 3, num_ctx: int = 99, options: RequestOptions = USUAL, **fields: Any
) -> Generation:
    params = SamplingParams(**{"temperature": 0, "max_tokens": 5, **fields})
    made = Generation(
        channel=RequestChannel(Events()), inputs=Inputs.text([1] * n_prompt), num_ctx=num_ctx, options=options,
        params=params,
        sampler=Sampler(params, N_VOCAB), emitter=TextEmitter(Letters(), cast(Any, params.stop)),
        eog_ids=frozenset({END}), n_prompt=n_prompt, key=key, slot=key,
    )  # fmt: skip
    made.awaited = 1
    return made


def step_of(*sequences: ScheduledRequest) -> Step:
    pieces = tuple(Scheduled(sequence.key, 3, 3 if sequence.rows_from is not None else 1) for sequence in sequences)
    return assemble(0, pieces, {sequence.key: sequence for sequence in sequences})


def rows(*best: int) -> FloatArray:
    return np.eye(N_VOCAB, dtype=np.float32)[list(best)]


def test_each_gets_the_token_of_its_row() -> None:
    first, other = generation(1), generation(2)
    outputs = step_outputs(step_of(first, other), rows(4, 2), 10.0)
    assert [(it.sequence, it.tokens, it.reason) for it in outputs] == [(first, (4,), None), (other, (2,), None)]
    assert (first.sampled, first.n_generated, first.awaited, first.first_token_at) == ([4], 1, 0, 10.0)


def test_who_has_left_gets_nothing_and_rows_are_not_mixed() -> None:
    first, gone, other = generation(1), generation(2), generation(3)
    step = step_of(first, gone, other)
    gone.epoch += 1
    outputs = step_outputs(step, rows(4, 5, 6), 0.0)
    assert [(it.sequence, it.tokens) for it in outputs] == [(first, (4,)), (other, (6,))]
    assert (gone.sampled, gone.awaited) == ([], 1)


def test_an_end_token_ends_it_and_is_no_part_of_it() -> None:
    answer = generation(1)
    (outputs,) = step_outputs(step_of(answer), rows(END), 0.0)
    assert (outputs.tokens, outputs.reason, answer.sampled, answer.epoch) == ((), "stop", [], 1)


@pytest.mark.parametrize(
    ("made", "token", "reason"),
    [
        (generation(1, max_tokens=1), 4, "length"),
        (generation(1, max_tokens=2), 4, None),
        (generation(1, max_tokens=0), None, "length"),
        (generation(1, num_ctx=3), None, "length"),
        (generation(1, num_ctx=4), 4, "length"),
        (generation(1, num_ctx=5), 4, None),
        (generation(1, num_ctx=3, options=RequestOptions("shift")), 4, None),
        (generation(1, num_ctx=3, options=RequestOptions("truncate")), None, "length"),
        (generation(1, max_tokens=None), 4, None),
    ],
)
def test_limits(made: Generation, token: int | None, reason: str | None) -> None:
    (outputs,) = step_outputs(step_of(made), rows(4), 0.0)
    assert (outputs.tokens, outputs.reason, made.epoch) == (
        () if token is None else (token,),
        reason,
        int(reason is not None),
    )


def test_scores_are_put_where_they_belong_again_after_a_preemption() -> None:
    scoring = Scoring(channel=RequestChannel(Events()), inputs=Inputs.text([1] * 6), num_ctx=9, key=1, slot=1,
                  row_reader=AllRows(6, N_VOCAB))  # fmt: skip
    assert step_outputs(step_of(scoring), rows(1, 2, 3), 0.0) == []
    scoring.withdraw()
    scoring.slot = 1
    assert step_outputs(step_of(scoring), rows(1, 2, 3), 0.0) == []
    scoring.submitted = 3
    (outputs,) = step_outputs(step_of(scoring), rows(4, 5, 6), 0.0)
    assert (outputs.reason, outputs.sound) == ("stop", True)
    assert scoring.row_reader.result().argmax(axis=1).tolist() == [1, 2, 3, 4, 5, 6]  # type: ignore[attr-defined]


def test_nonsense_is_an_error_of_its_own_row() -> None:
    bad, good, full = generation(1), generation(2), generation(3, max_tokens=0)
    logits = rows(1, 2, 3)
    logits[0, 3] = logits[2, 5] = np.nan
    by = {it.sequence.key: it for it in step_outputs(step_of(bad, good, full), logits, 0.0)}
    assert isinstance(by[1].error, SamplingError)
    assert [by[key].sound for key in (1, 2, 3)] == [False, True, False]
    assert (by[2].tokens, by[3].reason) == ((2,), "length")


def test_logprobs_are_of_the_sampled_token() -> None:
    answer = generation(1, logprobs=2)
    (outputs,) = step_outputs(step_of(answer), rows(4), 0.0)
    assert outputs.logprobs is not None
    assert outputs.logprobs[0].token == 4


# -- delivery ----------------------------------------------------------------------------------------------------------


def test_a_token_that_goes_on() -> None:
    assert outcome(StepOutput(generation(1), (2,)), 0.0) == (Chunk("c", (2,)), None)


def test_a_stop_text_ends_it() -> None:
    answer = generation(1, stop=("cd",))
    assert outcome(StepOutput(answer, (2,)), 0.0) == (Chunk("", (2,)), None)
    event, ended = outcome(StepOutput(answer, (3,)), 0.0)
    assert ended == "stop"
    assert isinstance(event, Chunk)
    assert (event.text, event.tokens, event.finish_reason) == ("", (3,), "stop")
    assert event.usage is not None


def test_held_text_is_flushed_at_the_end() -> None:
    answer = generation(1, stop=("cd",))
    outcome(StepOutput(answer, (2,)), 0.0)
    event, ended = outcome(StepOutput(answer, reason="stop"), 0.0)
    assert isinstance(event, Chunk)
    assert (event.text, ended) == ("c", "stop")


def test_a_stop_text_and_a_limit_at_once_count_as_a_stop() -> None:
    assert outcome(StepOutput(generation(1, stop=("c",)), (2,), reason="length"), 0.0)[1] == "stop"


def test_errors_are_handed_on() -> None:
    error = SamplingError("none")
    assert outcome(StepOutput(generation(1), error=error), 0.0) == (error, "error")
    answer = generation(1)
    answer.emitter.flush()
    event, ended = outcome(StepOutput(answer, (2,)), 0.0)
    assert isinstance(event, Exception)
    assert ended == "error"
