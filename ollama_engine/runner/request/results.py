"""What comes out of requests: chunks and completions of answers, one result of everything else."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ollama_engine.sample import TokenLogprobs

__all__ = ["Chunk", "Completion", "FinishReason", "Result", "Usage", "collect"]

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Usage:
    """What a request took. Seconds are wall-clock time, to the microsecond.

    Attributes:
        prompt_tokens: of the prompt as it was given, dropped ones included.
        completion_tokens: sampled tokens, without the one that ended the generation.
        cached_tokens: prompt tokens whose keys and values were there already.
        queue_seconds: waiting for the engine.
        prompt_seconds: from the start of the prompt to the first sampled token.
        completion_seconds: from the first sampled token to the end.
        dropped_prompt_tokens: left out of a prompt longer than num_ctx (`on_overflow` "truncate" and "shift").
        shifted_tokens: of prompt and answer, dropped from the context while the answer went on (`on_overflow` "shift").
        preemptions: how often the request gave up its cells to an older one and was computed again.
        discarded_tokens: sampled for candidates of `best_of` that are not returned; counted in the best one's usage.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    queue_seconds: float
    prompt_seconds: float
    completion_seconds: float
    dropped_prompt_tokens: int = 0
    shifted_tokens: int = 0
    preemptions: int = 0
    discarded_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of a streamed completion. The last has `finish_reason` and `usage`.

    Attributes:
        text: what can be shown now. It may come later than its tokens: characters and stop texts that are not complete
            yet are held back.
        tokens: sampled since the chunk before.
        logprobs: one entry for each of `tokens`, when asked for.
        finish_reason: "stop": the model ended, or a stop text appeared. "length": max_tokens or num_ctx is reached.
        usage: tokens counted and seconds taken.
        prompt_logprobs: of the first chunk, see `Completion`.
    """

    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer.

    Attributes:
        text: without control tokens, and cut before the stop text that ended it.
        tokens: all sampled tokens but the one that ended the generation; those of a stop text are included.
        finish_reason: "stop": the model ended, or a stop text appeared. "length": max_tokens or num_ctx is reached.
        usage: tokens counted and seconds taken.
        logprobs: one entry for each of `tokens`, when `SamplingParams.logprobs` asked for them.
        prompt_logprobs: one entry for each token of the prompt (what `on_overflow` has left of it), when
            `SamplingParams.prompt_logprobs` asked for them. The first is None, for it follows nothing; so are those of
            images.
        cumulative_logprob: the sum of the log-probabilities of `tokens`, where they were asked for or `best_of` needed
            them. The token that ended the generation does not count.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    logprobs: tuple[TokenLogprobs, ...] | None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    cumulative_logprob: float | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """All that comes out of a request that has no chunks: logits, or embeddings."""

    value: object


def collect(chunks: list[Chunk]) -> Completion:
    """The completion that these chunks, the last one included, make up."""
    last = chunks[-1]
    assert last.finish_reason is not None
    assert last.usage is not None
    parts = [chunk.logprobs for chunk in chunks if chunk.logprobs is not None]
    logprobs = tuple(entry for part in parts for entry in part) if parts else None
    return Completion(
        text="".join(chunk.text for chunk in chunks),
        tokens=tuple(token for chunk in chunks for token in chunk.tokens),
        finish_reason=last.finish_reason,
        usage=last.usage,
        logprobs=logprobs,
        prompt_logprobs=chunks[0].prompt_logprobs,
        cumulative_logprob=None if logprobs is None else math.fsum(entry.logprob for entry in logprobs),
    )
