"""Sequence: one request inside the engine, as a state machine over plain values. The engine thread owns it.

Its inputs are the prompt, then the sampled tokens. `submitted` of them are computed or being computed. While the step
that will give the next token is in flight, that token is `awaited`: it has an index, but no value yet.
Taking a sequence out of a step in flight raises its `epoch`, and the step's result is dropped for it.

A step computes k inputs of a decoding sequence: its last token, then k - 1 tokens of a `draft`. The sampler verifies
them row by row; those after the first wrong one are taken back. Without a drafter k is 1, unless a constraint forced
tokens to follow the one sampled: these need no verifying, and only the last of them has a row of logits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ollama_engine.input import FloatArray, Int32Array, MediaItem
from ollama_engine.runner.request.inputs import Inputs, Lookahead
from ollama_engine.runner.request.results import Usage
from ollama_engine.runner.schedule.drafts import MAX_DRAFT, ContextTokens, checked_guesses, constrained
from ollama_engine.runner.schedule.logits_processors import ProcessorChain
from ollama_engine.runner.schedule.queued import Kind, Progress, QueuedRequest, State
from ollama_engine.runner.schedule.row_readers import PromptLogprobs, RowReader
from ollama_engine.runner.schedule.scheduler import Candidate
from ollama_engine.runner.schedule.steering import Constraint, Draft, Drafter
from ollama_engine.runner.schedule.text_emitter import TextEmitter
from ollama_engine.sample import Sampler, SamplingParams, TokenLogprobs

if TYPE_CHECKING:
    from ollama_engine.runner.schedule.pinned_prefix import PinnedPrefix
    from ollama_engine.runner.schedule.shared_prompts import SharedPrompt

__all__ = ["Generation", "ScheduledRequest"]


@dataclass(slots=True, eq=False, kw_only=True)
class ScheduledRequest(QueuedRequest):
    """A request that is computed in a cache sequence."""

    answers: ClassVar[bool] = False
    """Whether a token is drawn from the last row of its prompt."""

    inputs: Inputs
    """The inputs computed as a prompt: the prompt, and after a preemption also the answer so far."""
    num_ctx: int
    row_reader: RowReader | None = None
    """Keeps logits of the prompt; the last row of an answer's prompt is drawn from, besides."""
    pinned: PinnedPrefix | None = None
    """The prefix pinned by its session, if any: the request uses that cache sequence."""
    # -- place --
    slot: int | None = None
    """The cache sequence, while it runs."""
    # -- progress --
    submitted: int = 0
    sampled: list[int] = field(default_factory=list)
    """Sampled tokens, which follow `inputs`."""
    draft: tuple[int, ...] = ()  # tokens that follow `sampled`
    draft_forced: int = 0  # see `Draft.forced`
    awaited: int = 0
    """Tokens that steps in flight or prepared will give."""
    epoch: int = 0
    preemptions: int = 0
    preempted_at: int = -1  # number of requests that had ended at its preemption
    follows: ScheduledRequest | None = None
    """The request whose prompt it will share: it waits until that prompt is computed."""
    shares: SharedPrompt | None = None  # with the running request that it waited for at the last step
    cached: int | None = None  # inputs reused when it first began
    # -- images --
    encoded_at: int = 0
    """Number of the turn in which an image was encoded for it last."""
    encoded: list[FloatArray] = field(default_factory=list)
    """Embeddings that were encoded for it and that no step has read: held, because a step waits for several images."""
    reading: FloatArray | None = None
    """The embeddings that it is reading: held, because an image may take several steps."""
    checkpoints: tuple[int, ...] = ()
    """Where recurrent states are kept: see `plan_checkpoints`."""

    n_inputs: int = field(init=False)
    """Length of `inputs`, cached here because every step needs it several times."""
    answer_begin: int = field(init=False)
    """Index at which the answer, or what a shift has left of it, begins."""

    def __post_init__(self) -> None:
        self.n_inputs = self.answer_begin = len(self.inputs)

    @property
    def leaves_history(self) -> bool:
        """Whether its cache sequence is kept when it has ended, for requests that begin alike."""
        return self.options.cache

    @property
    def rows_from(self) -> int | None:
        """Logits are wanted of this input of the prompt and of all behind it; None: of the last one alone.

        A cached prefix is used up to this input: the rest is computed.
        """
        return None if self.row_reader is None else self.row_reader.next

    @property
    def known(self) -> int:
        """Number of inputs whose tokens are known."""
        return self.n_inputs + len(self.sampled)

    @property
    def decoding(self) -> bool:
        """Whether the whole prompt is computed or in flight."""
        return self.submitted >= self.n_inputs

    @property
    def goes_on(self) -> bool:
        """Whether there is more to compute after the step in flight, as far as is known before it ends."""
        return self.submitted < self.n_inputs

    def image_to_encode(self, lookahead: Lookahead) -> MediaItem | None:
        """The image of its prompt that should be encoded next, if any."""
        if not self.inputs.media or self.decoding:
            return None
        return self.inputs.image_to_encode(self.submitted, lookahead)

    @property
    def full(self) -> bool:
        """Whether the context has no room for its next input."""
        return self.submitted >= self.num_ctx and self.goes_on

    @property
    def ready(self) -> bool:
        """Whether it need not wait for another request."""
        return True

    def progress(self) -> Progress:
        state: State = "waiting" if self.slot is None else "answer" if self.decoding else "prompt"
        return Progress(
            state, len(self.inputs), self.submitted, self.cached or 0, preemptions=self.preemptions, sequence=self.slot
        )

    def mark_ended(self) -> None:
        """See `QueuedRequest`. The results of steps in flight are dropped."""
        self.ended = True
        self.epoch += 1
        self.drop_embeddings()
        self.follows = None  # drop the reference: a chain of forks would never be freed

    def candidate(self, lookahead: Lookahead) -> Candidate | None:
        """The scheduler's view; None when none of its inputs can be computed next."""
        if self.submitted >= self.num_ctx or not self.goes_on:
            return None
        begin, priority = self.submitted, self.options.priority
        if begin >= self.n_inputs:
            certain = max(1, self.known - begin)
            end = min(begin + certain + len(self.draft), self.num_ctx)
            return Candidate(self.key, begin, end, True, None, priority, certain=certain)
        end, rows_from = self.n_inputs, self.rows_from
        if self.inputs.media:
            end = self.inputs.ready_until(begin, lookahead)
            if end == begin:
                return None
            if end < self.n_inputs and rows_from is None:
                rows_from = self.n_inputs - 1
        return Candidate(self.key, begin, end, False, rows_from, priority, self.inputs.groups)

    def token(self, at: int) -> int:
        """The token of one input; 0 where it is not known yet."""
        if at < self.n_inputs:
            return int(self.inputs.tokens[at])
        at -= self.n_inputs
        return self.sampled[at] if at < len(self.sampled) else 0

    def tokens(self, begin: int, n: int) -> Int32Array:
        """The tokens of `n` inputs, int32 [n], which lie in the prompt, or in the answer and its draft."""
        if begin + n <= self.n_inputs:
            return self.inputs.tokens[begin : begin + n]
        assert begin >= self.n_inputs, "a step computes either a part of the prompt, or of the answer"
        begin -= self.n_inputs
        known = self.sampled[begin : begin + n]
        return np.array([*known, *self.draft[: n - len(known)]], dtype=np.int32)

    @property
    def context(self) -> Inputs:
        """All its inputs now: the rest of the prompt, and the sampled tokens."""
        return self.inputs.with_tokens(self.sampled)

    def withdraw(self) -> None:
        """Take it out of steps in flight. All known inputs will be computed again, as a prompt."""
        self.epoch += 1
        self.awaited = 0
        self.inputs = self.context
        self.sampled, self.draft = [], ()
        self.n_inputs = len(self.inputs)
        self.submitted = 0
        self.slot = None
        self.drop_embeddings()

    def cut_draft(self, n: int) -> None:
        """The next step computes `n` inputs: the draft ends with them."""
        if self.draft:
            self.draft = self.draft[: max(0, n - max(1, self.known - self.submitted))]

    def drop_embeddings(self) -> None:
        """Hold no image any more."""
        self.encoded, self.reading = [], None

    def discard(self, keep: int, n: int) -> None:
        """Remove the inputs [keep, keep + n). It must be decoding, with all but its last token computed."""
        whole = self.context.without(keep, keep + n)
        self.submitted -= n
        self.draft = ()
        self.inputs, self.sampled = whole.part(0, self.submitted), whole.tokens[self.submitted :].tolist()
        self.n_inputs = self.submitted
        self.answer_begin -= max(0, min(self.answer_begin, keep + n) - keep)
        # Later ones were planned for other inputs.
        self.checkpoints = tuple(at for at in self.checkpoints if at <= keep)


@dataclass(slots=True, eq=False, kw_only=True)
class Generation(ScheduledRequest):
    """A request for an answer."""

    kind: ClassVar[Kind] = "generation"
    answers: ClassVar[bool] = True

    params: SamplingParams
    sampler: Sampler
    emitter: TextEmitter
    eog_ids: frozenset[int]
    n_prompt: int
    """Tokens of the prompt before truncation."""
    dropped: int = 0
    """Prompt tokens that truncation dropped."""
    keep: int = 0
    """Inputs at the beginning that a shift keeps."""
    shifted: int = 0
    n_generated: int = 0
    first_token_at: float = 0.0
    constraint: Constraint | None = None
    processors: ProcessorChain | None = None
    drafter: Drafter | None = None
    drafted: int = 0  # draft tokens that steps have verified
    accepted: int = 0  # those of them that were right
    prompt_token_ids: tuple[int, ...] | None = None  # before truncation, for the first chunk, where asked for

    @property
    def goes_on(self) -> bool:
        """Whether there is more to compute, as far as is known before the step in flight ends."""
        if self.submitted < self.n_inputs:
            return True
        if self.draft and self.awaited:
            return False  # unknown before the draft is verified
        coming = self.n_inputs + len(self.sampled) + self.awaited
        return self.submitted < coming and not self.at_limit(self.n_generated + self.awaited, coming)

    @property
    def ready(self) -> bool:
        """Whether the prompt that it will share is computed, or will never be."""
        leader = self.follows
        if leader is None or leader.ended:
            return True
        assert isinstance(leader, Generation)
        return leader.n_generated > 0 or leader.submitted >= leader.answer_begin

    def progress(self) -> Progress:
        """See `QueuedRequest`; the prompt counts before truncation."""
        return ScheduledRequest.progress(self)._replace(prompt_tokens=self.n_prompt, completion_tokens=self.n_generated)

    def at_limit(self, n_generated: int, n_inputs: int) -> bool:
        """Whether an answer of `n_generated` tokens is complete, with `n_inputs` inputs in the context."""
        return n_generated == self.params.max_tokens or (
            n_inputs >= self.num_ctx and self.options.on_overflow != "shift"
        )

    @property
    def complete(self) -> bool:
        """Whether the answer is complete with the tokens that it has."""
        return self.at_limit(self.n_generated, self.n_inputs + len(self.sampled))

    @property
    def places(self) -> int:
        """Number of tokens, after those in flight, until it reaches a limit or its context is full."""
        places = self.num_ctx - self.known - self.awaited
        if self.params.max_tokens is None:
            return places
        return min(places, self.params.max_tokens - self.n_generated - self.awaited)

    @property
    def has_forced(self) -> bool:
        """Whether more tokens are known than the next step, as it was planned, computes."""
        return self.awaited > 0 and self.submitted < self.known

    def propose(self) -> Draft:
        """The drafter's guesses. Raises what it raises, and TypeError or ValueError for guesses that are no tokens."""
        self.draft = ()
        if self.drafter is None or not self.decoding:
            return Draft()
        left = MAX_DRAFT if self.params.max_tokens is None else self.params.max_tokens - self.n_generated - 1
        most = max(0, min(self.num_ctx - self.known, left, MAX_DRAFT))
        tokens, chances, _ = self.drafter.propose(ContextTokens(self.inputs.tokens, self.sampled), most)
        return constrained(Draft(checked_guesses(tokens, most, self.sampler.n_vocab), chances), self.constraint, most)

    def mark_ended(self) -> None:
        """See `ScheduledRequest`."""
        ScheduledRequest.mark_ended(self)
        if self.drafter is not None:
            self.drafter.end(ContextTokens(self.inputs.tokens, self.sampled)[self.answer_begin :])

    def take_prompt_logprobs(self) -> tuple[TokenLogprobs | None, ...] | None:
        """The log-probabilities of the prompt's tokens, where they were asked for; once, for the first chunk."""
        reader, self.row_reader = self.row_reader, None
        return reader.result() if isinstance(reader, PromptLogprobs) else None

    def usage(self, now: float) -> Usage:
        """Counts and times until now."""
        first = self.first_token_at or now
        started = self.started_at or now
        return Usage(
            prompt_tokens=self.n_prompt,
            completion_tokens=self.n_generated,
            cached_tokens=self.cached or 0,
            prepare_seconds=round(self.prepare_seconds, 6),
            queue_seconds=round(max(0.0, started - self.submitted_at - self.prepare_seconds), 6),
            prompt_seconds=round(first - started, 6),
            completion_seconds=round(now - first, 6),
            dropped_prompt_tokens=self.dropped,
            shifted_tokens=self.shifted,
            preemptions=self.preemptions,
            drafted_tokens=self.drafted,
            accepted_tokens=self.accepted,
        )
