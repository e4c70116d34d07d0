"""Request: the caller's end of one generation, and what comes out of it: chunks, and usage at its end."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Literal, Protocol

from ollama_engine.errors import ClosedError, DeadlineError
from ollama_engine.sample import TokenLogprobs

if TYPE_CHECKING:
    from ollama_engine.runner.sequence import Generation

__all__ = [
    "Chunk",
    "Completion",
    "Event",
    "FinishReason",
    "Mailbox",
    "Request",
    "Ticket",
    "Usage",
    "collect",
    "results",
]

log = logging.getLogger(__name__)

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Usage:
    """What a request took. Seconds are wall-clock time.

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


class Ticket:
    """What a caller and the engine share of one request. Knows neither, so that each can go before the other."""

    def __init__(self, mailbox: Mailbox) -> None:
        self.mailbox = mailbox
        # A plain flag, set once: finalisers set it too, which may run anywhere and must not wait for a lock.
        self.cancelled = False
        self._broken = False
        self.taken = 0
        """Tokens of the chunks that the caller has taken."""
        self.done = False
        """Whether it has taken the last one, or the error."""
        self.ended = False
        """Whether that one has been sent."""

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


class Request(Iterator[Chunk]):
    """A generation that was handed to an engine: iterate over its chunks, or wait for its `result`.

    `cancel` ends it at the engine's next step. Dropping a request does not. Several threads may take chunks from one
    request; each chunk goes to one. `engine` is kept alive until the request is gone.
    """

    def __init__(self, engine: object = None, prompt: Iterable[int] = ()) -> None:
        self.engine = engine
        self._events: SimpleQueue[Event] = SimpleQueue()
        self.ticket = Ticket(self._events)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._taken: list[Chunk] = []
        self._ended = False
        self._error: BaseException | None = None
        self.prompt = tuple(prompt)
        """Token ids of the prompt, as it was given."""
        self.generation: Generation | None = None
        """What the engine does for it; not for callers."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """Tokens of the chunks that have been taken so far."""
        return tuple(token for chunk in list(self._taken) for token in chunk.tokens)

    @property
    def cancelled(self) -> bool:
        """Whether somebody called `cancel`."""
        return self.ticket.cancelled

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not: `result` returns at once then."""
        return self.ticket.ended

    def cancel(self) -> None:
        """End it at the engine's next step, if it has not ended; `next` and `result` raise ClosedError then.

        Takes no lock, for finalisers call it too. Safe to call twice.
        """
        self.ticket.cancelled = True

    def __next__(self) -> Chunk:
        return self._next(None)

    def result(self, timeout: float | None = None) -> Completion:
        """The whole completion, chunks that were taken before included; waits for its end.

        Raises what ended the request early, and DeadlineError (a TimeoutError) when it takes longer than `timeout`
        seconds; the request goes on then.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._ended:
            try:
                self._next(deadline)
            except StopIteration:
                break
        if self._error is not None:
            raise self._error
        return collect(self._taken)

    def _next(self, deadline: float | None) -> Chunk:
        if not self._lock.acquire(timeout=-1 if deadline is None else _left(deadline)):
            raise _too_late()
        try:
            if self._ended:
                raise StopIteration
            event = self._take(deadline)
            self._ended = self.ticket.note(event)
            if isinstance(event, Chunk):
                self._taken.append(event)
                return event
            self._error = event
            try:
                raise event
            finally:
                del event  # which would hold this frame, and by it the engine
        finally:
            self._lock.release()

    def _take(self, deadline: float | None) -> Event:
        if self._pid != os.getpid():
            raise ClosedError("this request was started before the process forked; its answer goes to the parent")
        try:
            return self._events.get(timeout=None if deadline is None else _left(deadline))
        except Empty:
            raise _too_late() from None
        except BaseException:  # KeyboardInterrupt
            self.cancel()
            raise


def _left(deadline: float) -> float:
    return min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)


def _too_late() -> DeadlineError:
    return DeadlineError("the request has not ended within the timeout of this call; it goes on")


def results(requests: list[Request]) -> list[Completion]:
    """All completions, in this order. When one raises, the others are cancelled."""
    try:
        return [request.result() for request in requests]
    finally:
        for request in requests:
            request.cancel()
