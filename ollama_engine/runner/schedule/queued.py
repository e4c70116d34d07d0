"""QueuedRequest: what requests of every kind have in common, from when they are queued until they end.

A `Sequence` needs a cache sequence and is computed in steps. A `BatchedRequest` needs none: its parts (texts to embed,
say) go into batches of their own, which are computed between two steps.
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
    """How far a request is."""

    state: State
    prompt_tokens: int
    computed_tokens: int
    cached_tokens: int = 0
    completion_tokens: int = 0
    preemptions: int = 0
    sequence: int | None = None
    """The cache sequence it has."""


@dataclass(slots=True, eq=False, kw_only=True)
class QueuedRequest:
    """A request in the engine. The engine's thread owns it."""

    kind: ClassVar[Kind]

    channel: RequestChannel
    options: RequestOptions = field(default_factory=RequestOptions)
    submitted_at: float = 0.0
    # -- place --
    call: int = 0
    """Which call handed it in; one call may hand in many."""
    key: int = -1
    """Rises with arrival."""
    # -- progress --
    started_at: float = 0.0
    """When it was first served; 0 before."""
    ended: bool = False

    @property
    def idle(self) -> bool:
        """Whether nothing can be computed for it before its caller gives more."""
        return False

    def progress(self) -> Progress:
        """How far it is. Any thread may ask; the numbers may be of two neighbouring moments."""
        raise NotImplementedError

    def mark_ended(self) -> None:
        """It has left the queue; nothing is computed for it any more."""
        self.ended = True


@dataclass(slots=True, eq=False, kw_only=True)
class BatchedRequest(QueuedRequest):
    """A request whose parts `batcher` computes between two steps, together with those of others."""

    batcher: Batcher
    last_batch: int = 0
    """The number of the batch that took its latest part: who gave a part longest ago gives the next one."""


class Batcher(Protocol):
    """Computes the parts of batched requests."""

    def run(self, turns: Sequence[Any]) -> list[tuple[BatchedRequest, Result | BaseException]]:
        """Compute one batch of what these requests have pending, and say which of them ended, and with what.

        `turns`: requests of this batcher, none idle. The first one's next part is in the batch whatever comes after it;
        the others are served by priority. Called from the engine's thread while nothing else computes; an error of a
        batch is what its requests end with, and anything that this raises is a fault of the engine.
        """
