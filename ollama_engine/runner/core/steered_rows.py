"""Sampling for generations that are steered: by a token mask for each row, by logits processors, by drafts, which make
several rows in a step.
"""

from __future__ import annotations

from collections.abc import Sequence

from ollama_engine.input import FloatArray
from ollama_engine.runner.request.results import FinishReason
from ollama_engine.runner.schedule.row_readers import is_sound
from ollama_engine.runner.schedule.sequence import Generation
from ollama_engine.runner.schedule.steering import TokenMask
from ollama_engine.sample import Sampler, TokenLogprobs, sample_rows

__all__ = ["SteeredRows", "draw_steered", "sample_all"]


class SteeredRows:
    """The tokens that a steered generation gets from its rows of one step, drawn row by row."""

    __slots__ = (
        "draft", "ended", "error", "generation", "logprobs", "n_rows", "reason", "row", "sound", "text", "tokens"
    )  # fmt: skip

    def __init__(self, generation: Generation, row: int, n_rows: int, now: float) -> None:
        generation.awaited -= 1
        generation.first_token_at = generation.first_token_at or now
        self.generation = generation
        self.row = row
        """Of the logits, for the next token."""
        self.n_rows = n_rows
        self.draft, generation.draft = generation.draft, ()
        self.tokens: list[int] = []
        self.text = ""
        self.logprobs: list[TokenLogprobs] = []
        self.ended = False
        self.reason: FinishReason | None = None
        self.error: BaseException | None = None
        self.sound = True

    def prepare(self, logits: FloatArray) -> TokenMask | Exception | None:
        """What may come next, when the processors have changed this row's `logits`.

        Or the error of a processor or the constraint, which ends this request alone.
        """
        generation = self.generation
        try:
            if generation.processors is not None:
                generation.processors.apply(logits[: generation.sampler.n_vocab])
            return None if generation.constraint is None else generation.constraint.mask()
        except Exception as error:
            return error

    def take(self, token: int | Exception, logits: FloatArray) -> bool:
        """Take the token that was drawn; whether the next row is of use, because it was computed after this token."""
        generation, row = self.generation, self.row
        try:
            if isinstance(token, BaseException):
                raise token
            if token in generation.eog_ids:
                return self._end("stop")
            if (wanted := generation.params.logprobs) is not None:
                scores = logits[row, : generation.sampler.n_vocab]
                self.logprobs.append(generation.sampler.logprobs(scores, token, wanted))
            generation.sampler.accept(token)
            if generation.processors is not None:
                generation.processors.accept(token)
            if generation.constraint is not None:
                generation.constraint.accept(token)
        except Exception as error:
            self.error, self.sound = error, is_sound(logits[row])
            return self._end(None)
        self.tokens.append(token)
        generation.sampled.append(token)
        generation.n_generated += 1
        # Here, and not in delivery: a token behind a stop text must not enter the context.
        self.text += generation.emitter.push(token)
        if generation.emitter.stopped:
            return self._end("stop")
        if generation.complete:
            return self._end("length")
        n = len(self.tokens)
        self.row += 1
        return n < self.n_rows and self.draft[n - 1] == token

    def _end(self, reason: FinishReason | None) -> bool:
        self.ended, self.reason = True, reason
        self.generation.epoch += 1
        return False

    def take_back(self) -> int:
        """How many inputs of the step came of wrong guesses. They no longer count as submitted."""
        right = self.n_rows if self.ended else len(self.tokens)
        self.generation.submitted -= self.n_rows - right
        return self.n_rows - right


def draw_steered(steered: list[SteeredRows], logits: FloatArray) -> list[SteeredRows]:
    """Draw from all first rows at once, then from the second rows of those whose draft goes on, and so on."""
    active = steered
    while active:
        wanted = logits[[rows.row for rows in active]]  # a copy, which processors may change
        masks = [rows.prepare(row) for rows, row in zip(active, wanted, strict=True)]
        tokens = sample_all([rows.generation.sampler for rows in active], wanted, masks)
        active = [rows for rows, token in zip(active, tokens, strict=True) if rows.take(token, logits)]
    return steered


def sample_all(
    samplers: list[Sampler], logits: FloatArray, masks: Sequence[TokenMask | Exception | None] | None = None
) -> list[int | Exception]:
    """A token for each row of logits [n, n_vocab], or what went wrong with it."""
    try:
        if masks is None or all(mask is None for mask in masks):
            return list(sample_rows(samplers, logits))
        sound = [mask for mask in masks if not isinstance(mask, Exception)]
        if len(sound) == len(masks):
            return list(sample_rows(samplers, logits, sound))
    except Exception:
        pass  # asked again below, one by one, so that only those end that cannot go on
    given = masks or [None] * len(samplers)
    return [_sample_alone(sampler, row, mask) for sampler, row, mask in zip(samplers, logits, given, strict=True)]


def _sample_alone(sampler: Sampler, row: FloatArray, mask: TokenMask | Exception | None) -> int | Exception:
    if isinstance(mask, Exception):
        return mask
    try:
        return sampler.sample(row[: sampler.n_vocab], mask)
    except Exception as error:
        return error
