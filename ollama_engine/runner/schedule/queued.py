"""QueuedRequest: the base of all kinds of requests, from queueing to their end.

A `Sequence` needs a cache sequence and is computed in steps. A `BatchedRequest` needs none: its parts, such as texts to
embed, are computed in separate batches between two steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from ollama_engine.runner.request.channel import RequestChannel
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.runner.request.results import Result

__all__ = ["BatchedRequest", "Batcher", "Kind", "Progress", "QueuedRequest", "State"]

Kind = Literal["generation", "scoring", "embedding"]
State = Literal["waiting", "prompt", "answer", "batches"]
"""A sequence's prompt or answer is computed; a batched request has parts in batches already."""


class Progress(NamedTuple):
    """The progress of a request."""

    state: State
    prompt_tokens: int
    computed_tokens: int
    cached_tokens: int = 0
    completion_tokens: int = 0
    preemptions: int = 0
    sequence: int | None = None
    """Its cache sequence, if it has one."""


@dataclass(slots=True, eq=False, kw_only=True)
class QueuedRequest:
    """A request in the engine. The engine thread owns it."""

    kind: ClassVar[Kind]

    channel: RequestChannel
    options: RequestOptions = field(default_factory=RequestOptions)
    submitted_at: float = 0.0
    """Time of its caller's call."""
    prepare_seconds: float = 0.0
    """Seconds from the call until the request was ready for the engine."""
    # -- place --
    call: int = 0
    """The call that submitted it; one call may submit many requests."""
    key: int = -1
    """Number in the order of arrival."""
    # -- progress --
    started_at: float = 0.0
    """Time when it was first served; 0 before."""
    ended: bool = False

    @property
    def idle(self) -> bool:
        """Whether nothing can be computed for it before its caller gives more."""
        return False

    def progress(self) -> Progress:
        """Its progress. Any thread may ask; the numbers need not be of the same moment."""
        raise NotImplementedError

    def mark_ended(self) -> None:
        """Called when the request leaves the queue; nothing is computed for it after that."""
        self.ended = True


@dataclass(slots=True, eq=False, kw_only=True)
class BatchedRequest(QueuedRequest):
    """A request whose parts `batcher` computes between two steps, together with parts of other requests."""

    batcher: Batcher
    last_batch: int = 0
    """The number of the batch that took its latest part. The request with the lowest number gives the next part."""


class Batcher(Protocol):
    """Computes the parts of batched requests."""

    def run(self, turns: Sequence[Any]) -> list[tuple[BatchedRequest, Result | BaseException]]:
        """Compute one batch of pending parts of these requests. Returns those that ended, with their result or error.

        `turns`: requests of this batcher, none idle. The next part of the first one is in the batch in any case; the
        others are served by priority. The engine thread calls this while nothing else computes. Where a batch fails,
        its requests end with the error; an exception from this method is a fault of the engine.
        """
