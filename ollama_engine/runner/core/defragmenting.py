"""Defragmenter: moves cells of the cache together between two steps, where the steps to come gain more by it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

import numpy as np

from ollama_engine.input import Int32Array
from ollama_engine.kvcache import Cache
from ollama_engine.runner.observe.monitor import Monitor, report
from ollama_engine.runner.schedule.sequence import Generation, ScheduledRequest

__all__ = ["Defragmenter"]

log = logging.getLogger(__name__)

EVERY = 8
"""Gaps from one look at the cells to the next, while there is nothing to move."""

ROWS_AHEAD = 256
"""Rows of a sequence to come that count: where an answer ends is unknown, and others may take its place."""


class Defragmenter:
    """For the engine's thread. Does nothing with a cache that gains nothing: `Cache.defragmentable` is None there."""

    def __init__(self, cache: Cache, monitor: Monitor) -> None:
        self._contract = cache.defragmentable
        self._monitor = monitor
        self._gaps = 0

    def serve_gap(self, running: Collection[ScheduledRequest], number: int, scrap: Callable[[], None]) -> bool:
        """Move a bounded number of cells before step `number`, where that pays for these sequences.

        `scrap` is called first: it drops the prepared step, whose cells would move. No step may be in flight. False
        where the computation fails: then it is unknown what the cells of any sequence hold.
        """
        if self._contract is None or not running:
            return True
        self._gaps += 1
        if self._gaps % EVERY or not self._contract.due(*_run_of(running)):
            return True
        scrap()
        begin = self._monitor.clock()
        try:
            moved = self._contract.defrag(*_run_of(running))
        except Exception as error:
            report(log, logging.ERROR, "cells could not be moved, so all are computed again: %s", error)
            return False
        self._gaps -= 2  # there may be more to move: look again behind the step that is prepared next
        self._monitor.defragmented(number, moved, begin)
        return True


def _run_of(running: Collection[ScheduledRequest]) -> tuple[Int32Array, int]:
    """The cache sequences of these requests, and how many rows they will compute."""
    slots = [sequence.slot for sequence in running if sequence.slot is not None]
    return np.array(slots, dtype=np.int32), sum(_rows_of(sequence) for sequence in running)


def _rows_of(sequence: ScheduledRequest) -> int:
    left = max(0, sequence.n_inputs - sequence.submitted)
    if isinstance(sequence, Generation):
        left += max(0, sequence.places)
    return min(left, ROWS_AHEAD)
