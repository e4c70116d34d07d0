"""PrefixWrites: histories of requests that end go to the prefix store, copied out of cells between two steps.

A bounded part at a time, so that running requests lose little; the store's threads write it. Nothing here waits for a
disk.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ollama_engine.kvcache import Saveable, SavedRows, Saving
from ollama_engine.runner.observe.monitor import Monitor, report
from ollama_engine.runner.prefix.cached_sequence import CachedSequence
from ollama_engine.runner.prefix_store.block_keys import block_keys
from ollama_engine.runner.prefix_store.prefix_store import PrefixStore
from ollama_engine.runner.prefix_store.stored_prefix import BlockPart
from ollama_engine.runner.schedule.prefix_blocks import BLOCK, LEAST

if TYPE_CHECKING:
    from ollama_engine.runner.prefix.cache_manager import CacheManager

__all__ = ["PrefixWrites"]

log = logging.getLogger(__name__)

COPY_SHARE = 0.05
"""Share of the time that copies take while requests run."""
SLICE_SECONDS = 0.0005
"""How long copies between two steps go on: the last piece begins within that time, and takes microseconds."""
MOST_HISTORIES = 64
"""Ended histories that wait to be copied; the oldest is given up for a new one."""


@dataclass(eq=False)
class _Storing:
    """An ended history that is copied, as long as its cells hold it."""

    slot: int
    history: CachedSequence
    keys: list[bytes]
    images: list[int]
    """Positions of the history's media items."""
    missing: deque[BlockPart] | None = None
    """What is not stored yet, in order; None while the store looks."""
    copying: Saving | None = None
    """The copy of the first missing block, which takes several gaps."""


class PrefixWrites:
    """For the engine's thread, which `post` has call a function while nothing computes. Any thread may post."""

    def __init__(
        self, store: PrefixStore, saveable: Saveable, cache_manager: CacheManager, monitor: Monitor,
        post: Callable[[Callable[[], object]], None],
    ) -> None:  # fmt: skip
        self._store = store
        self._post = post
        self._saveable = saveable
        self._cache_manager = cache_manager
        self._monitor = monitor
        self._next_copy_at = float("-inf")
        self._storing: deque[_Storing] = deque()

    @property
    def busy(self) -> bool:
        """Whether there is something to copy."""
        return bool(self._storing) and self._storing[0].missing is not None and self._store.room

    @property
    def pending(self) -> bool:
        """Whether histories are still to be stored."""
        return bool(self._storing)

    def left(self, slot: int) -> None:
        """A request has left this sequence, whose history may be worth storing."""
        prefix_cache = self._cache_manager.prefix_cache
        if prefix_cache.state(slot) != "finished" or prefix_cache.length(slot) < LEAST:
            return
        history = prefix_cache.snapshot(slot)
        keys = block_keys(self._store.root, np.array(history.tokens, np.int32), history.media, history.namespace)
        storing = _Storing(slot, history, keys, [span.begin for span in history.media])
        if len(self._storing) == MOST_HISTORIES:
            self._storing.popleft()
        self._storing.append(storing)
        self._store.look_for_missing(
            keys, storing.images, lambda missing: self._post(lambda: self._found(storing, missing))
        )

    def _found(self, storing: _Storing, missing: list[BlockPart]) -> None:
        storing.missing = deque(missing)
        while self._storing and self._storing[0].missing is not None and not self._storing[0].missing:
            self._storing.popleft()

    def serve_gap(self, *, alone: bool) -> None:
        """Copy rows out of cells for a bounded time, if there are any to store and the disk keeps up."""
        begin = self._monitor.clock()
        if self.busy and (begin >= self._next_copy_at or alone):
            if not alone:
                self._store.budget.hold()
            self._copy_for_a_while(begin)
        if not alone:
            self._store.budget.next_step()

    def _copy_for_a_while(self, begin: float) -> None:
        try:
            goes_on = self._copy(self._storing[0], begin + SLICE_SECONDS)
        except Exception as error:  # no memory, say: it must not end the engine
            report(log, logging.ERROR, "a prefix could not be stored: %s", error)
            goes_on = False
        if not goes_on:
            self._storing.popleft()
        seconds = self._monitor.clock() - begin
        self._next_copy_at = begin + seconds / COPY_SHARE

    def _copy(self, storing: _Storing, until: float) -> bool:
        """Copy pieces of a block until then; False where nothing is left, or the cells hold others now."""
        missing = storing.missing
        if not missing:
            return False
        block = missing[0].block
        if not self._cache_manager.prefix_cache.begins_with(storing.slot, storing.history, (block + 1) * BLOCK):
            return False
        if storing.copying is None:
            storing.copying = self._saveable.saving(storing.slot, block * BLOCK, (block + 1) * BLOCK)
        try:
            next(storing.copying)
            while self._monitor.clock() < until:
                next(storing.copying)
            return True
        except StopIteration as copied:
            storing.copying = None
            self._write(storing, block, copied.value)
        return bool(missing)

    def _write(self, storing: _Storing, block: int, copied: list[SavedRows]) -> None:
        """Hand a copied block to the store, as far as the cells had all that tokens behind it see."""
        assert storing.missing is not None
        while storing.missing and storing.missing[0].block == block:
            missing = storing.missing.popleft()
            kind, expected = missing.kind, self._store.layout.positions(missing, storing.images)
            part = _from(copied[kind], expected[0])
            if part.positions.tolist() == list(expected):
                self._store.write(storing.keys[block], kind, part, self._written if kind == 0 else self._wake)

    def _written(self, done: bool) -> None:
        """A block's first kind of layers is written, or could not be. Called by the store's thread."""
        if done:
            self._monitor.stored(BLOCK)
        self._wake(done)

    def _wake(self, _done: bool) -> None:
        """The disk may keep up again, for which histories wait. Called by the store's thread."""
        if self._storing:
            self._post(lambda: None)

    def no_steps(self) -> None:
        """No request runs any more."""
        self._store.budget.no_steps()

    def flush(self, seconds: float) -> None:
        """Before the engine closes: copy and write what waits, for so long at most. Ends the store's threads."""
        until = time.monotonic() + seconds
        self._store.budget.no_steps()
        try:
            for storing in self._storing:
                if storing.missing is None:
                    missing = self._store.missing_soon(storing.keys, storing.images, until - time.monotonic())
                    storing.missing = deque(missing or ())
                while (left := until - time.monotonic()) > 0 and self._store.wait_for_room(left):
                    if not self._copy(storing, self._monitor.clock() + SLICE_SECONDS):
                        break
        finally:
            self._storing.clear()
            self._store.close(until - time.monotonic())


def _from(saved: SavedRows, begin: int) -> SavedRows:
    """The rows at positions from `begin` on."""
    first = int(np.searchsorted(saved.positions, begin))
    return saved if first == 0 else SavedRows(saved.positions[first:], tuple(rows[first:] for rows in saved.rows))
