"""GapTurns: whose turn the gap between two steps is: a sequence that waits for an image, or requests for a batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ollama_engine.input import MediaItem, MediaTraits
from ollama_engine.runner.request.inputs import Lookahead
from ollama_engine.runner.schedule.pace import prompt_tokens_beside
from ollama_engine.runner.schedule.queued import BatchedRequest, QueuedRequest
from ollama_engine.runner.schedule.scheduler import FAIR_EVERY
from ollama_engine.runner.schedule.sequence import ScheduledRequest

__all__ = ["GapTurns", "arrival", "is_fair"]

LOWEST = float("-inf")
"""Priority where no request waits."""


class GapTurns:
    """If every waiting request has a lower priority than a running sequence that needs no gap, waiting requests get one
    gap in `FAIR_EVERY`. At one priority, images and batches take turns.

    `batch_size`: tokens of a batch.
    """

    def __init__(self, batch_size: int, traits: MediaTraits) -> None:
        self._batch_size = batch_size
        self._most_images = traits.groups_per_batch
        self._lookahead = Lookahead()
        self._wanting: list[ScheduledRequest] = []
        """The sequences that waited for an image when the last step was planned."""
        self._gaps = 0
        """Gaps between two steps for which requests waited."""
        self._batches = 0
        self._images = 0
        self._gap_had_image = False

    def plan(self, running: Collection[ScheduledRequest]) -> Lookahead:
        """Note who waits for an image. Returns how many images a prompt waits for, before a step computes them.

        Those of one batch. Beside running answers a step computes few inputs of prompts, so prompts wait for fewer.
        """
        answers = sum(sequence.decoding for sequence in running)
        inputs = min(self._batch_size, prompt_tokens_beside(answers, len(running) - answers)) if answers else None
        self._lookahead = Lookahead(inputs or self._batch_size, self._most_images)
        self._wanting = [sequence for sequence in running if self.image_for(sequence) is not None]
        return self._lookahead

    def image_for(self, sequence: ScheduledRequest) -> MediaItem | None:
        """The image that a sequence waits for, if any."""
        return None if sequence.channel.unwanted else sequence.image_to_encode(self._lookahead)

    def choose(
        self, waiting: Collection[QueuedRequest], running: Mapping[int, ScheduledRequest]
    ) -> ScheduledRequest | list[BatchedRequest]:
        """Whose turn this gap is: a sequence, or requests for a batch in order of turn, which have the same batcher.

        Often of no request: an empty list. `waiting` is in the order of priority.
        """
        if not waiting and not self._wanting:
            return []
        wanting = [seq for seq in self._wanting if seq.key in running and self.image_for(seq) is not None]
        ready = [request for request in waiting if isinstance(request, BatchedRequest) and not request.idle]
        if not ready and not wanting:
            return []
        self._gaps += 1
        image_first = max((sequence.options.priority for sequence in wanting), default=LOWEST)
        batch_first = ready[0].options.priority if ready else LOWEST
        fair, first = is_fair(self._gaps), max(image_first, batch_first)
        if not fair and any(sequence.options.priority > first for sequence in running.values()):
            return []
        alternate = bool(wanting and ready) and (fair or image_first == batch_first)
        self._gap_had_image = not self._gap_had_image if alternate else image_first > batch_first
        return self._image_turn(wanting) if self._gap_had_image else self._batch_turns(ready)

    def _image_turn(self, wanting: list[ScheduledRequest]) -> ScheduledRequest:
        self._images += 1
        turn = min(wanting, key=arrival if is_fair(self._images) else _image_order)
        turn.encoded_at = self._images
        return turn

    def _batch_turns(self, ready: list[BatchedRequest]) -> list[BatchedRequest]:
        ready.sort(key=_batch_turn)
        if is_fair(self._batches):
            oldest = min(ready, key=arrival)
            ready.remove(oldest)
            ready.insert(0, oldest)
        self._batches += 1
        return [request for request in ready if request.batcher is ready[0].batcher]


def is_fair(turn: int) -> bool:
    """Whether this turn ignores priorities."""
    return turn % FAIR_EVERY == FAIR_EVERY - 1


def arrival(request: QueuedRequest) -> int:
    """Sort key: the oldest first."""
    return request.key


def _image_order(sequence: ScheduledRequest) -> tuple[int, int, int]:
    """Sort key: by priority, then by the turn in which an image was encoded for it last, oldest first."""
    return (-sequence.options.priority, sequence.encoded_at, sequence.key)


def _batch_turn(request: BatchedRequest) -> tuple[int, int, int]:
    """Sort key: by priority, then by the batch that took the request's latest part, oldest first."""
    return (-request.options.priority, request.last_batch, request.key)
