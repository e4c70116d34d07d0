"""StoredPrefixes: the prefix store as the engine's thread sees it, where there is one."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ollama_engine.runner.schedule.queued import QueuedRequest
from ollama_engine.runner.schedule.sequence import ScheduledRequest

if TYPE_CHECKING:  # few engines have a store
    from ollama_engine.runner.core.prefix_reads import PrefixReads
    from ollama_engine.runner.core.prefix_writes import PrefixWrites

__all__ = ["StoredPrefixes"]


class StoredPrefixes:
    """What is read of the store, and what is written to it. Without one no request waits, and nothing is copied."""

    def __init__(self, reads: PrefixReads | None = None, writes: PrefixWrites | None = None) -> None:
        self._reads = reads
        self._writes = writes

    @property
    def waiting(self) -> Collection[int]:
        """Keys of the requests that wait for the store."""
        return self._reads.waiting if self._reads is not None else ()

    @property
    def busy(self) -> bool:
        """Whether there is something to copy."""
        return self._writes is not None and self._writes.busy

    @property
    def pending(self) -> bool:
        """Whether histories are still to be stored."""
        return self._writes is not None and self._writes.pending

    def ask(self, sequence: ScheduledRequest) -> bool:
        """Ask the store for the prefix of a request that is to be admitted, once; whether it waits for the answer."""
        return self._reads is not None and self._reads.ask(sequence)

    def give_way(self) -> bool:
        """Have what is being read make way for running requests; whether there are more cells to evict then."""
        return self._reads is not None and self._reads.give_way()

    def left(self, request: QueuedRequest, slot: int | None) -> None:
        """A request has left the engine, and this sequence."""
        if self._reads is not None:
            self._reads.left(request)
        if self._writes is not None and slot is not None:
            self._writes.left(slot)

    def serve_gap(self, *, alone: bool) -> None:
        """Copy a bounded number of rows out of cells, if there are any to store and the disk keeps up.

        Now and then only, unless `alone`: no request runs.
        """
        if self._writes is not None:
            self._writes.serve_gap(alone=alone)

    def no_steps(self) -> None:
        """No request runs any more: blocks may be written as fast as the disk takes them."""
        if self._writes is not None:
            self._writes.no_steps()

    def flush(self, seconds: float) -> None:
        """Before the engine closes: copy and write what waits, for so long at most."""
        if self._writes is not None:
            self._writes.flush(seconds)
