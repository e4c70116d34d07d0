"""Request: one generation from prompt to end, as a state machine over plain values."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Literal

from ollama_engine.runner.emit import TextEmitter
from ollama_engine.sample import Sampler, SamplingParams, TokenLogprobs

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Usage:
    """What a request took. Seconds are wall-clock time.

    Attributes:
        prompt_tokens: length of the prompt.
        completion_tokens: sampled tokens, without the one that ended the generation.
        cached_tokens: prompt tokens whose keys and values were there already.
        queue_seconds: waiting for the engine.
        prompt_seconds: from the start of the prompt to the first sampled token.
        completion_seconds: from the first sampled token to the end.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    queue_seconds: float
    prompt_seconds: float
    completion_seconds: float


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
    """

    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None


@dataclass(slots=True, eq=False)
class Request:
    """The loop's view of a generation; everything but `events` and `cancelled` belongs to the loop's thread.

    `cancelled` is set once and looked at before each step: a plain flag, for it is also set by finalisers, which may
    run anywhere and must not wait for a lock.
    """

    prompt: list[int]
    params: SamplingParams
    sampler: Sampler
    emitter: TextEmitter
    eog_ids: frozenset[int]
    num_ctx: int
    # -- shared with the caller's thread --
    events: SimpleQueue[Chunk | BaseException] = field(default_factory=SimpleQueue)
    cancelled: bool = False
    # -- progress --
    n_computed: int = 0
    sampled: list[int] = field(default_factory=list)
    # -- clock, seconds of time.perf_counter --
    submitted_at: float = field(default_factory=time.perf_counter)
    started_at: float = 0.0
    first_token_at: float = 0.0

    def pending(self) -> list[int]:
        """Tokens that are known but not computed yet: the rest of the prompt, or the token sampled last."""
        if self.n_computed < len(self.prompt):
            return self.prompt[self.n_computed :]
        return self.sampled[self.n_computed - len(self.prompt) :]

    @property
    def n_tokens(self) -> int:
        """Prompt and answer so far."""
        return len(self.prompt) + len(self.sampled)

    def usage(self, now: float) -> Usage:
        """Counts and times until now."""
        first = self.first_token_at or now
        started = self.started_at or now
        return Usage(
            prompt_tokens=len(self.prompt),
            completion_tokens=len(self.sampled),
            cached_tokens=0,
            queue_seconds=started - self.submitted_at,
            prompt_seconds=first - started,
            completion_seconds=now - first,
        )
