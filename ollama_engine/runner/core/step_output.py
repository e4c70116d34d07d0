"""Landing: what a computed step gives its sequences. Sampling comes before the next step starts, delivery after."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ollama_engine.runner.load.executor import FloatArray
from ollama_engine.runner.observe.metrics import Outcome
from ollama_engine.runner.request.channel import Event
from ollama_engine.runner.request.results import Chunk, FinishReason, Result
from ollama_engine.runner.schedule.batching import Step
from ollama_engine.runner.schedule.sequence import Generation, Scoring, Sequence
from ollama_engine.sample import Sampler, TokenLogprobs, sample_rows

__all__ = ["StepOutput", "outcome", "step_outputs"]


class StepOutput(NamedTuple):
    """What one sequence got."""

    sequence: Sequence
    token: int | None = None
    """None where it ended without one."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    reason: FinishReason | None = None
    """Why it has ended; a stop text is found in delivery only."""
    error: BaseException | None = None
    sound: bool = True
    """Whether the logits were numbers; if not, what led to them lies in the cache. Known of those that end here."""


def step_outputs(step: Step, logits: FloatArray, now: float) -> list[StepOutput]:
    """Sample for all rows that somebody still wants, and let their sequences take the tokens."""
    outputs: list[StepOutput] = []
    drawn: list[Generation] = []
    rows: list[int] = []
    row = at = 0
    for entry in step.entries:
        sequence = entry.sequence
        if not entry.outputs or not entry.alive:
            pass
        elif isinstance(sequence, Generation):
            # A prompt may leave no place for an answer, or none be wanted.
            if not entry.decoding and sequence.complete:
                outputs.append(_ended(sequence, "length", logits[row]))
            else:
                drawn.append(sequence)
                rows.append(row)
        elif isinstance(sequence, Scoring):
            begin = int(step.batch.positions[at + entry.n - entry.outputs])
            outputs.extend(_score(sequence, begin, logits[row : row + entry.outputs]))
        row += entry.outputs
        at += entry.n
    return outputs + _draw(drawn, rows, logits, now)


def _score(sequence: Scoring, begin: int, logits: FloatArray) -> list[StepOutput]:
    end = begin + len(logits)
    sequence.rows[begin:end] = logits
    sequence.sound &= _sound(logits)
    if end < len(sequence.rows):
        return []
    sequence.epoch += 1
    return [StepOutput(sequence, reason="stop", sound=sequence.sound)]


def _ended(sequence: Sequence, reason: FinishReason, logits: FloatArray) -> StepOutput:
    sequence.epoch += 1
    return StepOutput(sequence, reason=reason, sound=_sound(logits))


def _sound(logits: FloatArray) -> bool:
    """No NaN, no +infinity."""
    return bool((logits < np.inf).all())


def _draw(drawn: list[Generation], rows: list[int], logits: FloatArray, now: float) -> list[StepOutput]:
    if not drawn:
        return []
    wanted = logits if len(rows) == len(logits) else logits[rows]
    tokens = _sample([one.sampler for one in drawn], wanted)
    return [_take(one, token, wanted, i, now) for i, (one, token) in enumerate(zip(drawn, tokens, strict=True))]


def _sample(samplers: list[Sampler], rows: FloatArray) -> list[int | Exception]:
    try:
        return list(sample_rows(samplers, rows))
    except Exception:
        # One after the other, so that only those end that cannot go on.
        return [_sample_one(sampler, row) for sampler, row in zip(samplers, rows, strict=True)]


def _sample_one(sampler: Sampler, row: FloatArray) -> int | Exception:
    try:
        return sampler.sample(row[: sampler.n_vocab])
    except Exception as error:
        return error


def _take(one: Generation, token: int | Exception, logits: FloatArray, row: int, now: float) -> StepOutput:
    one.awaited -= 1
    one.first_token_at = one.first_token_at or now
    logprobs: tuple[TokenLogprobs, ...] | None = None
    try:
        if isinstance(token, BaseException):
            raise token
        if token in one.eog_ids:
            one.epoch += 1
            return StepOutput(one, reason="stop")
        if (wanted := one.params.logprobs) is not None:
            logprobs = (one.sampler.logprobs(logits[row, : one.sampler.n_vocab], token, wanted),)
        one.sampler.accept(token)
    except Exception as error:
        one.epoch += 1
        return StepOutput(one, error=error, sound=_sound(logits[row]))
    one.sampled.append(token)
    one.n_generated += 1
    if not one.complete:
        return StepOutput(one, token, logprobs)
    one.epoch += 1
    return StepOutput(one, token, logprobs, "length")


def outcome(outputs: StepOutput, now: float) -> tuple[Event, Outcome | None]:
    """What goes into the sequence's mailbox, and how it has ended with it; None when it goes on."""
    one = outputs.sequence
    try:
        if outputs.error is not None:
            return outputs.error, "error"
        if isinstance(one, Generation):
            chunk = _chunk(one, outputs, now)
            return chunk, chunk.finish_reason
        assert isinstance(one, Scoring), "the only other kind"
        return Result(one.rows), outputs.reason
    except Exception as error:
        # What ends this request must not end others.
        return error, "error"


def _chunk(one: Generation, outputs: StepOutput, now: float) -> Chunk:
    if outputs.token is None:
        logprobs = None if one.params.logprobs is None else ()
        return Chunk(one.emitter.flush(), (), logprobs, outputs.reason, one.usage(now))
    text, reason = one.emitter.push(outputs.token), outputs.reason
    if reason is not None and not one.emitter.stopped:
        text += one.emitter.flush()
    if one.emitter.stopped:
        reason = "stop"
    usage = None if reason is None else one.usage(now)
    return Chunk(text, (outputs.token,), outputs.logprobs, reason, usage)
