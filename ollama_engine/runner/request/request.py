"""Request: the caller's end of one generation, and what comes out of it: chunks, and usage at its end."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Literal, Protocol, cast

from ollama_engine.errors import ClosedError, DeadlineError
from ollama_engine.sample import TokenLogprobs

if TYPE_CHECKING:
    from ollama_engine.runner.schedule.inputs import Inputs
    from ollama_engine.runner.schedule.sequence import Generation

__all__ = [
    "Chunk",
    "Completion",
    "Event",
    "FinishReason",
    "Mailbox",
    "Request",
    "RequestChannel",
    "Usage",
    "collect",
]

log = logging.getLogger(__name__)

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


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer.

    Attributes:
        text: without control tokens, and cut before the stop text that ended it.
        tokens: all sampled tokens but the one that ended the generation; those of a stop text are included.
        finish_reason: "stop": the model ended, or a stop text appeared. "length": max_tokens or num_ctx is reached.
        usage: tokens counted and seconds taken.
        logprobs: one entry for each of `tokens`, when `SamplingParams.logprobs` asked for them.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    logprobs: tuple[TokenLogprobs, ...] | None


Event = Chunk | BaseException
"""What a request's mailbox receives: chunks, of which the last has a finish reason, or what ended it early."""


class Mailbox(Protocol):
    """Where the engine puts what comes out of a request; it never waits for who takes it."""

    def put(self, event: Event, /) -> None:
        """Take one. Called from the engine's thread. One that raises gets nothing more; its request is cancelled."""


def collect(chunks: list[Chunk]) -> Completion:
    """The completion that these chunks, the last one included, make up."""
    last = chunks[-1]
    assert last.finish_reason is not None
    assert last.usage is not None
    logprobs = [chunk.logprobs for chunk in chunks if chunk.logprobs is not None]
    wanted = bool(logprobs) or last.logprobs is not None
    return Completion(
        text="".join(chunk.text for chunk in chunks),
        tokens=tuple(token for chunk in chunks for token in chunk.tokens),
        finish_reason=last.finish_reason,
        usage=last.usage,
        logprobs=tuple(entry for part in logprobs for entry in part) if wanted else None,
    )


def _is_last(event: Event) -> bool:
    return not isinstance(event, Chunk) or event.finish_reason is not None


class RequestChannel:
    """What a caller and the engine share of one request. Knows neither, so that each can go before the other."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        # A plain flag, set once: to set it takes no call, so that no interrupt comes in between.
        self.cancelled = False
        self._gone: list[object] = []
        self._watch: weakref.ref[object] | None = None
        self._broken = False
        self.taken = 0
        """Tokens of the chunks that the caller has taken."""
        self.done = False
        """Whether it has taken the last one, or the error."""
        self.ended = False
        """Whether that one has been sent."""

    def watch(self, handle: object) -> None:
        """The request ends when nobody has this object any more.

        An interrupt in a finaliser is swallowed, with what the finaliser was to do. `list.append` is none of Python's
        code, and nothing comes in between.
        """
        self._watch = weakref.ref(handle, self._gone.append)

    @property
    def unwanted(self) -> bool:
        """Whether it was cancelled, or its handle dropped."""
        return self.cancelled or bool(self._gone)

    def note(self, event: Event) -> bool:
        """The caller has taken an event; whether it was the last one."""
        if isinstance(event, Chunk):
            self.taken += len(event.tokens)
        self.done = _is_last(event)
        return self.done

    def send(self, event: Event) -> None:
        """Put it into the mailbox. Called from the engine's thread; raises nothing, for that would end all requests."""
        if self._broken:
            return
        try:
            self.mailbox.put(event)
            # Afterwards: who finds it ended finds the event.
            self.ended = _is_last(event)
        except Exception as error:
            log.debug("a mailbox raised %r; its request is cancelled", error)
            self._broken = self.cancelled = True


class _Events:
    """The events of one request, for any number of threads; each goes to one. All are kept: an interrupt loses none."""

    def __init__(self) -> None:
        self.all: list[Event] = []
        self.n_taken = 0
        self._taking = threading.Lock()
        # One for each event that waits. A superfluous one has somebody look in vain, a missing one would let him wait.
        self._bell: SimpleQueue[None] = SimpleQueue()

    def put(self, event: Event) -> None:
        """Called from the engine's thread."""
        self.all.append(event)
        self._bell.put(None)

    def over(self) -> bool:
        """Whether the last one has been taken."""
        return bool(self.n_taken) and _is_last(self.all[self.n_taken - 1])

    def take(self, deadline: float | None) -> Event | None:
        """The next one; None after the last. Raises Empty when the deadline, of `time.monotonic`, is over."""
        if self.over():
            return None
        try:
            while True:
                self._bell.get(timeout=None if deadline is None else _left(deadline))
                with self._taking:
                    if self.over():
                        self._bell.put(None)  # for others who wait
                        return None
                    if self.n_taken < len(self.all):
                        self.n_taken += 1
                        if self.over():
                            self._bell.put(None)
                        return self.all[self.n_taken - 1]
        except Empty:
            raise
        except BaseException:
            self._bell.put(None)  # whoever was interrupted may have heard it
            raise


class Request(Iterator[Chunk]):
    """A generation that was handed to an engine: iterate over its chunks, or wait for its `result`.

    `cancel` ends it at the engine's next step. Dropping a request does not; an interrupt (KeyboardInterrupt, or what
    another signal handler raises) in `next` or `result` does. Several threads may take chunks from one request; each
    chunk goes to one. `engine` is kept alive until the request is gone.
    """

    def __init__(self, engine: object = None, inputs: Inputs | None = None, *, watched: bool = False) -> None:
        self.engine = engine
        self._events = _Events()
        self.channel = RequestChannel(self._events)
        if watched:  # dropping this one does cancel it
            self.channel.watch(self)
        self._pid = os.getpid()
        self.inputs = inputs
        """The prompt, as it was given; not for callers."""
        self.generation: Generation | None = None
        """What the engine does for it; not for callers."""

    @property
    def prompt(self) -> tuple[int, ...]:
        """Token ids of the prompt, as it was given."""
        return () if self.inputs is None else tuple(self.inputs.tokens.tolist())

    @property
    def tokens(self) -> tuple[int, ...]:
        """Tokens of the chunks that have been taken so far."""
        taken = self._events.all[: self._events.n_taken]
        return tuple(token for chunk in taken if isinstance(chunk, Chunk) for token in chunk.tokens)

    @property
    def cancelled(self) -> bool:
        """Whether somebody called `cancel`."""
        return self.channel.cancelled

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not: `result` returns at once then."""
        return self.channel.ended

    def cancel(self) -> None:
        """End it at the engine's next step, if it has not ended; `next` and `result` raise ClosedError then.

        Takes no lock, for finalisers call it too. Safe to call twice.
        """
        self.channel.cancelled = True

    def __next__(self) -> Chunk:
        event = self._take(None)
        if isinstance(event, Chunk):
            return event
        if event is None:
            raise StopIteration
        try:
            raise event
        finally:
            del event  # which would hold this frame, and by it the engine

    def result(self, timeout: float | None = None) -> Completion:
        """The whole completion, chunks that were taken before included; waits for its end.

        Raises what ended the request early, and DeadlineError (a TimeoutError) when it takes longer than `timeout`
        seconds; the request goes on then.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._take(deadline) is not None:
            pass
        last = self._events.all[-1]
        if isinstance(last, Chunk):
            return collect(cast(list[Chunk], self._events.all))
        try:
            raise last
        finally:
            del last

    def __repr__(self) -> str:
        state = "ended" if self.done else "cancelled" if self.channel.unwanted else "under way"
        return f"Request({len(self.prompt)} prompt tokens, {len(self.tokens)} answer tokens taken, {state})"

    def _take(self, deadline: float | None) -> Event | None:
        if self._pid != os.getpid() and not self._events.over():
            raise ClosedError("this request was started before the process forked; its answer goes to the parent")
        try:
            event = self._events.take(deadline)
            if event is not None:
                self.channel.note(event)
            return event
        except Empty:
            raise DeadlineError("the request has not ended within the timeout of this call; it goes on") from None
        except BaseException:  # an interrupt
            self.channel.cancelled = True
            raise


def _left(deadline: float) -> float:
    return min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)
