"""Landing: what a computed step gives its sequences. Sampling comes before the next step starts, delivery after."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ollama_engine.runner.batching import Part, Step
from ollama_engine.runner.executor import FloatArray
from ollama_engine.runner.metrics import Outcome
from ollama_engine.runner.request import Chunk, Event, FinishReason
from ollama_engine.runner.sequence import Generation, Scoring, Sequence
from ollama_engine.sample import Sampler, TokenLogprobs, sample_rows

__all__ = ["Landed", "land", "outcome"]


class Landed(NamedTuple):
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


def land(step: Step, logits: FloatArray, now: float) -> list[Landed]:
    """Sample for all rows that somebody still wants, and let their sequences take the tokens."""
    landed: list[Landed] = []
    drawn: list[tuple[Generation, int]] = []
    row = 0
    for part in step.parts:
        sequence = part.sequence
        if part.outputs and part.alive:
            if isinstance(sequence, Scoring):
                landed.extend(_score(sequence, part, logits[row : row + part.outputs]))
            elif isinstance(sequence, Generation):
                drawn.append((sequence, row))
        row += part.outputs
    # A prompt may leave no place for an answer, or none be wanted.
    over = [one.at_limit(one.n_generated, one.known) for one, _ in drawn]
    landed += [_ended(one, "length", logits[at]) for (one, at), done in zip(drawn, over, strict=True) if done]
    return landed + _draw([one for one, done in zip(drawn, over, strict=True) if not done], logits, now)


def _score(sequence: Scoring, part: Part, logits: FloatArray) -> list[Landed]:
    end = part.begin + part.outputs
    sequence.rows[part.begin : end] = logits
    sequence.sound &= _sound(logits)
    if end < len(sequence.rows):
        return []
    sequence.epoch += 1
    return [Landed(sequence, reason="stop", sound=sequence.sound)]


def _ended(sequence: Sequence, reason: FinishReason, logits: FloatArray) -> Landed:
    sequence.epoch += 1
    return Landed(sequence, reason=reason, sound=_sound(logits))


def _sound(logits: FloatArray) -> bool:
    """No NaN, no +infinity."""
    return bool((logits < np.inf).all())


def _draw(drawn: list[tuple[Generation, int]], logits: FloatArray, now: float) -> list[Landed]:
    if not drawn:
        return []
    at = [row for _, row in drawn]
    rows = logits if len(at) == len(logits) else logits[at]
    tokens = _sample([one.sampler for one, _ in drawn], rows)
    return [_take(one, token, row, now) for (one, _), token, row in zip(drawn, tokens, rows, strict=True)]


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


def _take(one: Generation, token: int | Exception, row: FloatArray, now: float) -> Landed:
    one.awaited -= 1
    one.first_token_at = one.first_token_at or now
    try:
        if isinstance(token, BaseException):
            raise token
        if token in one.eog_ids:
            one.epoch += 1
            return Landed(one, reason="stop")
        wanted = one.params.logprobs
        logprobs = None if wanted is None else (one.sampler.logprobs(row[: one.sampler.n_vocab], token, wanted),)
        one.sampler.accept(token)
    except Exception as error:
        one.epoch += 1
        return Landed(one, error=error, sound=_sound(row))
    one.sampled.append(token)
    one.n_generated += 1
    if not one.at_limit(one.n_generated, one.known):
        return Landed(one, token, logprobs)
    one.epoch += 1
    return Landed(one, token, logprobs, "length")


def outcome(landed: Landed, now: float) -> tuple[Event, Outcome | None]:
    """What goes into the sequence's mailbox, and how it has ended with it; None when it goes on."""
    one = landed.sequence
    try:
        if landed.error is not None:
            return landed.error, "error"
        if isinstance(one, Generation):
            chunk = _chunk(one, landed, now)
            return chunk, chunk.finish_reason
        return Chunk("", finish_reason=landed.reason), landed.reason
    except Exception as error:
        # What ends this request must not end others.
        return error, "error"


def _chunk(one: Generation, landed: Landed, now: float) -> Chunk:
    if landed.token is None:
        logprobs = None if one.params.logprobs is None else ()
        return Chunk(one.emitter.flush(), (), logprobs, landed.reason, one.usage(now))
    text, reason = one.emitter.push(landed.token), landed.reason
    if reason is not None and not one.emitter.stopped:
        text += one.emitter.flush()
    if one.emitter.stopped:
        reason = "stop"
    usage = None if reason is None else one.usage(now)
    return Chunk(text, (landed.token,), landed.logprobs, reason, usage)
