"""The output of a computed step: sampling, before the next step starts, and delivery, after that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ollama_engine.input import FloatArray, Int32Array
from ollama_engine.runner.core.request_queue import RequestQueue
from ollama_engine.runner.core.steered_rows import SteeredRows, draw_steered, sample_all
from ollama_engine.runner.execute.best_logits import BestLogits
from ollama_engine.runner.observe.metrics import Outcome
from ollama_engine.runner.request.channel import Event
from ollama_engine.runner.request.results import Chunk, FinishReason, Result, ValueReader
from ollama_engine.runner.schedule.batching import Step, StepEntry
from ollama_engine.runner.schedule.row_readers import is_sound
from ollama_engine.runner.schedule.scoring import Scoring
from ollama_engine.runner.schedule.sequence import Generation, ScheduledRequest
from ollama_engine.sample import TokenLogprobs

__all__ = ["StepOutput", "deliver", "is_outdated", "outcome", "step_outputs"]


@dataclass(slots=True, eq=False)
class StepOutput:
    """One step's output for one sequence: tokens, an error, or its end."""

    sequence: ScheduledRequest
    tokens: tuple[int, ...] = ()
    """Sampled tokens: several where a draft was right, none where the sequence ended without a token."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One entry for each token, if the request asked for log-probabilities."""
    text: str | None = None
    """Text of the tokens, if finding a stop text needed it; otherwise delivery asks the text emitter."""
    reason: FinishReason | None = None
    """Why the sequence has ended, if it has. Stop texts are mostly found later, in delivery."""
    error: BaseException | None = None
    sound: bool = True
    """False where a sequence ends here because of NaN logits: then its cells may contain NaN, too."""
    drafted: int = 0
    accepted: int = 0
    taken_back: int = 0
    """Number of wrong draft tokens: the last inputs of the sequence, which must leave the cache."""

    @property
    def goes_on(self) -> bool:
        """Whether the sequence goes on, as far as is known before delivery."""
        return self.reason is None and self.error is None


def step_outputs(step: Step, logits: FloatArray, now: float, best: BestLogits | None = None) -> list[StepOutput]:
    """Sample for all sequences that are still alive, and append the tokens to them.

    `best`: what has read the logits, if only the best of some rows came.
    """
    outputs: list[StepOutput] = []
    drawn: list[Generation] = []
    rows: list[int] = []
    steered: list[SteeredRows] = []
    row = at = 0
    for entry in step.entries:
        sequence, n_drawn = entry.sequence, entry.outputs - entry.read
        if not entry.outputs or not entry.alive:
            pass
        elif entry.read and (ended := _read(entry, step, at, logits[row:])) is not None:
            outputs.append(ended)
        elif n_drawn:
            assert isinstance(sequence, Generation), "the only kind that draws"
            row_drawn = row + entry.read
            # No room for an answer, or none wanted (max_tokens=0).
            if not entry.decoding and sequence.complete:
                outputs.append(_ended(sequence, "length", logits[row_drawn]))
            elif n_drawn == 1 and sequence.constraint is None and sequence.processors is None:
                drawn.append(sequence)
                rows.append(row_drawn)
            else:
                steered.append(SteeredRows(sequence, row_drawn, n_drawn, now))
        row += entry.outputs
        at += entry.n
    if drawn:
        outputs += _draw(drawn, rows, logits, now, best.known if best else None)
    if steered:
        outputs += map(_steered, draw_steered(steered, logits))
    return outputs


def is_outdated(prepared: Step, outputs: list[StepOutput]) -> bool:
    """Whether a step was prepared for other tokens than there are now.

    With earlier drafts, or without those that a constraint has forced since. Computing one token takes many times as
    long as planning a step.
    """
    if prepared.drafted:
        return True
    several = [output.sequence for output in outputs if output.tokens[1:]]
    forced = {sequence for sequence in several if isinstance(sequence, Generation) and sequence.has_forced}
    return any(entry.alive and entry.sequence in forced for entry in prepared.entries)


def _read(entry: StepEntry, step: Step, at: int, logits: FloatArray) -> StepOutput | None:
    """Have the row reader take its rows, the first ones of `logits`; where that ends the sequence, its output.

    `at`: where the entry's inputs begin in the batch.
    """
    sequence, rows = entry.sequence, logits[: entry.read]
    begin = int(step.batch.positions[at + entry.n - entry.outputs])
    assert sequence.row_reader is not None
    try:
        sequence.row_reader.read(begin, rows)
    except Exception as error:
        sequence.epoch += 1
        return StepOutput(sequence, error=error, sound=is_sound(rows))
    if isinstance(sequence, Generation) or sequence.row_reader.next is not None:
        return None
    sequence.epoch += 1
    return StepOutput(sequence, reason="stop", sound=sequence.row_reader.sound)


def _ended(sequence: ScheduledRequest, reason: FinishReason, logits: FloatArray) -> StepOutput:
    sequence.epoch += 1
    return StepOutput(sequence, reason=reason, sound=is_sound(logits))


def _draw(
    drawn: list[Generation], rows: list[int], logits: FloatArray, now: float,
    known: Sequence[Int32Array | None] | None,
) -> list[StepOutput]:  # fmt: skip
    """One token for each generation, from these rows, all of them in one call of the sampler."""
    ids = None if known is None else [known[row] for row in rows]
    tokens = sample_all([generation.sampler for generation in drawn], logits, rows, known=ids)
    return [_take(*each, logits, now) for each in zip(drawn, tokens, rows, strict=True)]


def _take(generation: Generation, token: int | Exception, row: int, logits: FloatArray, now: float) -> StepOutput:
    generation.awaited -= 1
    generation.first_token_at = generation.first_token_at or now
    logprobs: tuple[TokenLogprobs, ...] | None = None
    try:
        if isinstance(token, BaseException):
            raise token
        if token in generation.eog_ids:
            generation.epoch += 1
            return StepOutput(generation, reason="stop")
        if (wanted := generation.params.logprobs) is not None:
            logprobs = (generation.sampler.logprobs(logits[row, : generation.sampler.n_vocab], token, wanted),)
        generation.sampler.accept(token)
    except Exception as error:
        generation.epoch += 1
        return StepOutput(generation, error=error, sound=is_sound(logits[row]))
    generation.sampled.append(token)
    generation.n_generated += 1
    if not generation.complete:
        return StepOutput(generation, (token,), logprobs)
    generation.epoch += 1
    return StepOutput(generation, (token,), logprobs, reason="length")


def _steered(rows: SteeredRows) -> StepOutput:
    generation, tokens = rows.generation, tuple(rows.tokens)
    logprobs = tuple(rows.logprobs) if tokens and generation.params.logprobs is not None else None
    return StepOutput(
        generation, tokens, logprobs, rows.text, rows.reason, rows.error, rows.sound, rows.drafted, rows.accepted,
        rows.take_back(),
    )  # fmt: skip


def deliver(outputs: list[StepOutput], queue: RequestQueue, now: float) -> None:
    """Send the outputs of a step to their callers; sequences that end with it leave the queue."""
    for output in outputs:
        sequence = output.sequence
        if sequence.ended:
            continue  # by an error since its step was collected
        event, ended = outcome(output, now)
        if ended is not None:
            # Before the caller gets the event, so that the caller finds the request gone.
            queue.leave(sequence, ended, keep=not isinstance(event, BaseException) and output.sound)
        sequence.channel.send(event)


def outcome(output: StepOutput, now: float) -> tuple[Event, Outcome | None]:
    """(the event for the request's channel; the outcome if the sequence ends with it, else None)."""
    sequence = output.sequence
    try:
        if output.error is not None:
            return output.error, "error"
        if isinstance(sequence, Generation):
            chunk = _chunk(sequence, output, now)
            if sequence.prompt_token_ids is not None:
                chunk.prompt_token_ids, sequence.prompt_token_ids = sequence.prompt_token_ids, None
            return chunk, chunk.finish_reason
        assert isinstance(sequence, Scoring), "the only other kind"
        return Result(sequence.row_reader.result()), output.reason
    except Exception as error:
        # Catch everything: an error in one request must not end others.
        return error, "error"


def _chunk(generation: Generation, output: StepOutput, now: float) -> Chunk:
    emitter, logprobs = generation.emitter, output.logprobs
    of_prompt = None if generation.row_reader is None else generation.take_prompt_logprobs()
    if not output.tokens:
        wanted = None if generation.params.logprobs is None else ()
        reader = _reader(generation, output.reason)
        return Chunk(emitter.flush(), (), wanted, output.reason, generation.usage(now), of_prompt, reader)
    reason = output.reason
    text = "".join(map(emitter.push, output.tokens)) if output.text is None else output.text
    if not emitter.stopped and reason is not None:
        text += emitter.flush()  # may complete a stop text, too
    if emitter.stopped:
        reason = "stop"
    if reason is None:
        return Chunk(text, output.tokens, logprobs, prompt_logprobs=of_prompt)
    usage = generation.usage(now)
    return Chunk(text, output.tokens, logprobs, reason, usage, of_prompt, _reader(generation, reason))


def _reader(generation: Generation, reason: FinishReason | None) -> ValueReader | None:
    """Reads the value of an answer that has ended; None before that, and without a format."""
    if reason is None or generation.constraint is None:
        return None
    cut = None
    if generation.emitter.stopped:
        cut = f"the stop text {generation.emitter.stop!r} came"
    elif reason == "length":
        cut = "max_tokens or num_ctx was reached"
    return generation.constraint.reader(cut)
