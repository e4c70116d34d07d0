"""Random schedules for the core: who asks for what and when, and a driver that steps it and notes what comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import strategies as st

from ollama_engine.errors import ContextOverflowError
from ollama_engine.kvcache import CausalCache, CompositeCache
from ollama_engine.runner.core.engine_core import EngineCore
from ollama_engine.runner.core.new_requests import new_generation, new_scoring
from ollama_engine.runner.load import loading
from ollama_engine.runner.load.loading import Loaded
from ollama_engine.runner.observe.monitor import Monitor
from ollama_engine.runner.request.channel import Event, RequestChannel
from ollama_engine.runner.request.inputs import Inputs
from ollama_engine.runner.request.options import OnOverflow, RequestOptions
from ollama_engine.runner.request.results import Chunk
from ollama_engine.runner.schedule.row_readers import AllRows
from ollama_engine.runner.schedule.scoring import Scoring
from ollama_engine.runner.schedule.sequence import Generation, ScheduledRequest
from ollama_engine.runner.schedule.steering import Draft
from ollama_engine.sample import SamplingParams
from tests.kvcache.shrinking import give_cells

MEMORY = 10
"""How far back a sequence can be resumed where layers see a window or chunk only."""

MOST_STEPS = 3000
"""More than any schedule needs: after as many, something hangs."""


# -- what is asked -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wish:
    """One request."""

    at: int
    """The step before which it is submitted."""
    document: int
    length: int
    tail: int
    """0, or the seed of some tokens that follow the document's."""
    scoring: bool
    rows_from: int
    """Of scoring, the first row that is wanted."""
    max_tokens: int | None
    overflow: OnOverflow
    num_keep: int
    cache: bool
    priority: int
    end_after: int | None
    """The model ends it after so many tokens, or earlier where the same token comes earlier."""
    stop_after: int | None
    """A stop text completes after so many tokens, or earlier."""
    cancel_after: int | None
    """Steps from submission."""
    timeout: float | None
    """In steps."""
    follow_up: bool
    """When it has ended, another one continues it."""
    more_answers: int
    """Others that follow it and share its prompt."""
    fork_after: int | None
    """Steps from submission; another one goes on from what it has by then."""
    task: bool
    """Something wants the cache for itself when it comes."""
    prompt_logprobs: int | None
    drafts: float | None
    """A drafter guesses ahead, and each of its tokens is right with this probability; None: no drafter."""


@dataclass(frozen=True)
class Schedule:
    """An engine and who uses it."""

    num_ctx: int
    parallel: int
    batch_size: int
    n_sequences: int
    spare: float
    """Cells: 0 for one full context, 1 for as many as run at once."""
    wishes: tuple[Wish, ...]


def _rarely(value: st.SearchStrategy[Any], otherwise: Any = None) -> st.SearchStrategy[Any]:
    return st.one_of(st.just(otherwise), st.just(otherwise), st.just(otherwise), value)


def wishes(num_ctx: int) -> st.SearchStrategy[Wish]:
    return st.builds(
        Wish,
        at=st.integers(0, 40),
        document=st.integers(0, 2),
        length=st.one_of(st.integers(1, num_ctx // 2), st.integers(1, num_ctx + 8)),
        tail=_rarely(st.integers(1, 3), 0),
        scoring=_rarely(st.booleans(), False),
        rows_from=st.integers(0, num_ctx),
        max_tokens=st.one_of(st.integers(2, 24), st.sampled_from([0, 1, None])),
        overflow=st.sampled_from(["error", "truncate", "shift", "shift"]),
        num_keep=_rarely(st.integers(1, num_ctx - 1), 0),
        cache=_rarely(st.just(False), True),
        priority=_rarely(st.integers(-1, 1), 0),
        end_after=_rarely(st.integers(0, 12)),
        stop_after=_rarely(st.integers(1, 10)),
        cancel_after=_rarely(st.integers(0, 20)),
        timeout=_rarely(st.floats(0.5, 30)),
        follow_up=st.booleans(),
        more_answers=_rarely(st.integers(1, 3), 0),
        fork_after=_rarely(st.integers(0, 12)),
        task=_rarely(st.just(True), False),
        prompt_logprobs=_rarely(st.integers(0, 2)),
        drafts=_rarely(st.sampled_from([0.0, 0.5, 0.9, 1.0])),
    )


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    num_ctx = draw(st.sampled_from([12, 24, 40, 64]))
    return Schedule(
        num_ctx,
        parallel=draw(st.integers(1, 6)),
        batch_size=draw(st.sampled_from([4, 7, 16, 33, 64])),
        n_sequences=draw(st.sampled_from([6, 8, 16])),
        spare=draw(st.sampled_from([0.0, 0.0, 0.2, 0.5, 1.0])),
        wishes=tuple(draw(st.lists(wishes(num_ctx), min_size=1, max_size=10))),
    )


# -- what came out -----------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Asked:
    """A request, and what its mailbox received."""

    wish: Wish
    sequence: ScheduledRequest
    prompt: tuple[int, ...]
    """What of its prompt was left after truncation."""
    since: int
    stop: str | None = None
    events: list[Event] = field(default_factory=list)
    restarts: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    """After a shift: tokens generated, and all inputs that were to be computed again then."""

    @property
    def tokens(self) -> list[int]:
        return [token for event in self.events if isinstance(event, Chunk) for token in event.tokens]

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Chunk))

    @property
    def end(self) -> Event:
        return self.events[-1]


class Run:
    """Steps a core through a schedule. `answer(prompt, n)` are tokens that end and stop texts are chosen from."""

    def __init__(
        self, parts: Loaded, schedule: Schedule, documents: list[list[int]],
        answer: Callable[[tuple[int, ...], int], list[int]],
    ) -> None:  # fmt: skip
        self._schedule = schedule
        self._documents = documents
        self._answer = answer
        self._parts = replace(parts, config=replace(parts.config, num_ctx=schedule.num_ctx))
        self.now = 0
        monitor = Monitor(parts.tokenizer.token_text, lambda: float(self.now))
        self.core = EngineCore(parts.executor, parts.cache, schedule.parallel, monitor, verify=True)
        self.core.cache_manager.prefix_cache._limit = schedule.n_sequences
        parts.executor.batch_size = max(schedule.batch_size, schedule.parallel)
        parts.executor.max_outputs = min(loading.LOGIT_ROWS, parts.executor.batch_size)
        _shrink(parts, schedule)
        self.asked: list[Asked] = []
        self.refused = 0
        self.forks = 0

    def run(self) -> None:
        """To the end of all requests, of follow-ups too."""
        with self._noting_restarts():
            coming = sorted(self._schedule.wishes, key=lambda wish: wish.at)
            while coming or self.core.busy:
                while coming and coming[0].at <= self.now:
                    self._ask(coming.pop(0))
                if self.core.busy:
                    self.core.step()
                self.now += 1
                assert self.now < MOST_STEPS, "a schedule does not come to an end"
                self._meddle(coming)

    def _ask(self, wish: Wish) -> None:
        prompt = self._documents[wish.document][: wish.length]
        if wish.tail:
            prompt = prompt + np.random.default_rng(wish.tail).integers(0, 200, 5).tolist()
        self.submit(wish, prompt)

    def submit(self, wish: Wish, prompt: list[int], follows: Generation | None = None) -> None:
        if wish.task:
            self.core.add_task(_Alone(self.core))
        first = self._submit(wish, prompt, follows)
        if isinstance(first, Generation):
            for _ in range(wish.more_answers):
                self._submit(wish, prompt, first)

    def _submit(self, wish: Wish, prompt: list[int], follows: Generation | None) -> ScheduledRequest | None:
        events: list[Event] = []
        channel = RequestChannel(_List(events))
        try:
            sequence: ScheduledRequest
            if wish.scoring:
                sequence = self._scoring(prompt, channel, wish.rows_from)
            else:
                sequence = self._generation(wish, prompt, channel, follows)
        except ContextOverflowError:
            num_ctx = self._schedule.num_ctx
            answer = not wish.scoring and wish.max_tokens != 0
            kept = wish.overflow == "error" or wish.scoring or wish.num_keep + answer >= num_ctx
            assert kept
            assert len(prompt) + answer > num_ctx
            self.refused += 1
            return None
        sequence.submitted_at = self.now
        asked = Asked(wish, sequence, tuple(sequence.inputs.tokens.tolist()), self.now, events=events)
        if isinstance(sequence, Generation):
            self._arrange_end(asked, sequence)
        self.asked.append(asked)
        self.core.add(sequence)
        return sequence

    def _scoring(self, prompt: list[int], channel: RequestChannel, rows_from: int) -> Scoring:
        begin = min(rows_from, len(prompt) - 1)
        reader = LastRows(len(prompt), self._parts.model.n_vocab, begin) if begin else None
        return new_scoring(self._parts, Inputs.text(prompt), channel, reader)

    def _generation(
        self, wish: Wish, prompt: list[int], channel: RequestChannel, follows: Generation | None
    ) -> Generation:
        most = 3 * self._schedule.num_ctx if wish.max_tokens is None and wish.overflow == "shift" else wish.max_tokens
        options = RequestOptions(wish.overflow, wish.num_keep, wish.priority, wish.timeout, wish.cache)
        stop = ()
        if wish.stop_after is not None:
            tokens = self._answer(tuple(prompt[-self._schedule.num_ctx :]), wish.stop_after + 1)
            text = self._parts.tokenizer.decode(tokens[-2:])
            stop = (text,) if text else ()
        params = SamplingParams(temperature=0, max_tokens=most, stop=stop, prompt_logprobs=wish.prompt_logprobs)
        follows = follows if wish.cache else None
        drafter = None if wish.drafts is None else Guesser(self._answer, prompt, wish.drafts)
        return new_generation(
            self._parts, Inputs.text(prompt), params, options, channel, follows=follows, drafter=drafter
        )

    def _arrange_end(self, asked: Asked, sequence: Generation) -> None:
        sequence.eog_ids = frozenset()
        if asked.wish.end_after is not None:
            sequence.eog_ids = frozenset(self._answer(asked.prompt, asked.wish.end_after + 1)[-1:])
        asked.stop = sequence.params.stop[0] if sequence.params.stop else None  # type: ignore[index]

    def _meddle(self, coming: list[Wish]) -> None:
        for asked in list(self.asked):
            wish = asked.wish
            if wish.fork_after is not None and self.now - asked.since >= wish.fork_after and not wish.scoring:
                asked.wish = wish = replace(wish, fork_after=None)
                prompt = [*asked.prompt, *asked.tokens]
                if len(prompt) <= self._schedule.num_ctx:
                    assert isinstance(asked.sequence, Generation)
                    alone = replace(wish, follow_up=False, more_answers=0, task=False, cancel_after=None)
                    self.submit(replace(alone, end_after=None, stop_after=None), prompt, asked.sequence)
                    self.forks += 1
            if wish.cancel_after is not None and self.now - asked.since >= wish.cancel_after:
                asked.sequence.channel.cancelled = True
            if wish.follow_up and asked.sequence.ended and isinstance(asked.end, Chunk) and not wish.scoring:
                asked.wish = replace(wish, follow_up=False)
                prompt = [*asked.prompt, *asked.tokens, 7, 9][: self._schedule.num_ctx - 1]
                alone = replace(asked.wish, more_answers=0, fork_after=None, task=False)
                self.submit(replace(alone, end_after=None, stop_after=None, cancel_after=None), prompt)

    @contextmanager
    def _noting_restarts(self) -> Iterator[None]:
        withdraw = ScheduledRequest.withdraw

        def noting(sequence: ScheduledRequest) -> None:
            withdraw(sequence)
            if isinstance(sequence, Generation) and sequence.shifted:
                asked = next(asked for asked in self.asked if asked.sequence is sequence)
                asked.restarts.append((sequence.n_generated, tuple(sequence.inputs.tokens.tolist())))

        with patch.object(ScheduledRequest, "withdraw", noting):
            yield


class LastRows(AllRows):
    """Keeps the rows from one on."""

    def __init__(self, n_inputs: int, n_columns: int, begin: int) -> None:
        super().__init__(n_inputs, n_columns)
        self._done = begin
        self.rows[:begin] = 0


class Guesser:
    """Drafts of up to five tokens, each of which is right with a probability, as long as nothing is shifted out."""

    source = None

    def __init__(self, answer: Callable[[tuple[int, ...], int], list[int]], prompt: list[int], right: float) -> None:
        self._answer = answer
        self._prompt = tuple(prompt)
        self._right = right
        self._random = np.random.default_rng(len(prompt))

    def propose(self, tokens: SequenceOf[int], most: int) -> Draft:
        n = int(self._random.integers(0, 6))
        done = len(tokens) - len(self._prompt)
        known = self._answer(self._prompt, done + n)[done:] if done >= 0 and len(tokens) + n < 200 else [3] * n
        guesses = [token if self._random.random() < self._right else (token + 1) % 200 for token in known]
        return Draft(guesses[:most])

    def end(self, answer: SequenceOf[int]) -> None:
        """Nothing is kept."""


class _List:
    """A mailbox that is looked at in the end."""

    def __init__(self, events: list[Event]) -> None:
        self._events = events

    def put(self, event: Event) -> None:
        assert not self._events or isinstance(self._events[-1], Chunk), "nothing comes after an error"
        assert not self._events or self._events[-1].finish_reason is None, "nothing comes after the end"  # type: ignore[union-attr]
        self._events.append(event)


class _Alone:
    """A task that finds nothing computing."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core

    def run(self, core: EngineCore) -> None:
        assert core is self._core
        assert core._in_flight is None
        core.check()

    def fail(self, error: BaseException) -> None:
        raise error


def _shrink(parts: Loaded, schedule: Schedule) -> None:
    """An empty cache that has cells for as many sequences as the schedule says, which may be one."""
    caches = parts.cache.caches if isinstance(parts.cache, CompositeCache) else (parts.cache,)
    contexts = 1 + schedule.spare * (schedule.parallel - 1)
    for cache in caches:
        assert isinstance(cache, CausalCache)
        limit = cache.visibility.window or cache.visibility.chunk
        kept = schedule.num_ctx if limit is None else min(schedule.num_ctx, limit + cache.memory)
        batch = parts.executor.batch_size if kept < schedule.num_ctx else 0
        give_cells(cache, int(contexts * kept) + batch)
