"""PrefixGaps: what the engine's thread asks of a prefix store, and what it gets where there is none."""

from __future__ import annotations

from collections.abc import Collection

from ollama_engine.runner.schedule.queued import QueuedRequest
from ollama_engine.runner.schedule.sequence import ScheduledRequest

__all__ = ["PrefixGaps"]


class PrefixGaps:
    """An engine without a prefix store: no request waits, and no rows are copied. `StoredPrefixes` has a store."""

    waiting: Collection[int] = ()
    """Keys of the requests that wait for the store."""

    @property
    def busy(self) -> bool:
        """Whether there is something to copy."""
        return False

    @property
    def holds(self) -> bool:
        """Whether histories are still to be stored."""
        return False

    def awaited(self, sequence: ScheduledRequest) -> bool:
        """Whether a request that waits to be admitted waits for the store, which is asked the first time."""
        return False

    def left(self, request: QueuedRequest, slot: int | None) -> None:
        """A request has left the engine, and this sequence, whose history may be worth storing."""

    def give_way(self) -> bool:
        """Have what is being read make way for running requests; whether there are more cells to evict then."""
        return False

    def serve_gap(self, *, alone: bool) -> None:
        """Copy a bounded number of rows out of cells, if there are any to store and the disk keeps up.

        Now and then only, unless `alone`: no request runs.
        """

    def flush(self, seconds: float) -> None:
        """Before the engine closes: copy and write what waits, for so long at most."""
