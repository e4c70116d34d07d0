"""StoredPrefixes: the engine's side of the prefix store. It copies blocks between cells and the store's threads.

A prompt of a block or more waits, before it gets a cache sequence, until the store has looked for it. What is read goes
into a sequence of its own, block by block between two steps, and stays in the prefix cache, where the prompt then finds
it as it finds what an earlier request has left. The histories of requests that end are copied, a bounded part between
two steps, and written behind them. Nothing here waits for a disk.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ollama_engine.errors import ContextOverflowError
from ollama_engine.kvcache import Saveable, SavedRows
from ollama_engine.runner.core.prefix_gaps import PrefixGaps
from ollama_engine.runner.observe.monitor import Monitor, report
from ollama_engine.runner.prefix.cached_sequence import CachedSequence
from ollama_engine.runner.prefix_store.block_keys import block_keys
from ollama_engine.runner.prefix_store.prefix_store import PrefixReading, PrefixStore
from ollama_engine.runner.prefix_store.stored_prefix import BlockPart, is_whole, rows_of_block
from ollama_engine.runner.request.inputs import Inputs, MediaIdentity, MediaSpan, spans_between
from ollama_engine.runner.schedule.pinned_prefix import PinnedPrefix, Saved
from ollama_engine.runner.schedule.prefix_blocks import BLOCK

if TYPE_CHECKING:
    from ollama_engine.runner.prefix.cache_manager import CacheManager
    from ollama_engine.runner.schedule.queued import QueuedRequest
    from ollama_engine.runner.schedule.sequence import ScheduledRequest

__all__ = ["StoredPrefixes"]

log = logging.getLogger(__name__)

Post = Callable[[Callable[[], object]], None]

MOST_RESTORING = 4
"""Prompts that are read at a time. More would evict each other before they are admitted."""
PATIENCE = 10.0
"""Seconds without a block after which a prompt is computed: a disk that is stuck holds up no request for longer."""
FEWEST_ROWS = 8
"""Rows that are copied out of the cache at once, at least: a worker takes as long for one."""
COPY_SHARE = 0.05
"""Share of the time that copies take while requests run."""
SLICE_SECONDS = 0.0005
"""How long a copy between two steps may take: half as many rows are copied after a longer one."""
MOST_HISTORIES = 64
"""Ended histories that wait to be copied; the oldest is given up for a new one."""


@dataclass(eq=False)
class _Restoring:
    """A prompt whose blocks are read, or a sequence that its blocks are put into."""

    key: int
    inputs: Inputs
    reading: PrefixReading
    since: float
    """When it began, or the latest block came."""
    pinned: PinnedPrefix = field(default_factory=PinnedPrefix)
    """The sequence is pinned until all is there, like a session's."""


@dataclass(eq=False)
class _Storing:
    """An ended history that is copied, as long as its cells hold it."""

    slot: int
    history: CachedSequence
    keys: list[bytes]
    missing: deque[BlockPart] | None = None
    """What is not stored yet, in order; None while the store looks."""
    at: int = 0
    """Rows of the first missing block that are copied."""
    pieces: list[list[SavedRows]] = field(default_factory=list)
    """What is copied of that block, piece by piece, with an entry for each kind of layers."""


class StoredPrefixes(PrefixGaps):
    """For the engine's thread, which `post` has call a function while nothing computes. Any thread may post.

    `before_write` is called before cells are written: it drops the prepared step.
    """

    def __init__(
        self, store: PrefixStore, saveable: Saveable, cache_manager: CacheManager, monitor: Monitor,
        before_write: Callable[[], None], post: Post,
    ) -> None:  # fmt: skip
        self._store = store
        self._post = post
        self._saveable = saveable
        self._cache_manager = cache_manager
        self._monitor = monitor
        self._before_write = before_write
        self._slice = FEWEST_ROWS
        self._next_copy_at = float("-inf")
        # -- prompts --
        self._restoring: dict[bytes, _Restoring] = {}
        """By the key of their first block: prompts that begin alike are read one after the other."""
        self._asked: set[int] = set()
        """Requests that the store was asked about."""
        self.waiting: set[int] = set()
        """Requests that wait for it."""
        # -- histories --
        self._storing: deque[_Storing] = deque()

    @property
    def busy(self) -> bool:
        """Whether there is something to copy."""
        return bool(self._storing) and self._storing[0].missing is not None and self._store.room

    @property
    def holds(self) -> bool:
        """Whether histories are still to be stored."""
        return bool(self._storing)

    # -- reading -------------------------------------------------------------------------------------------------------

    def awaited(self, sequence: ScheduledRequest) -> bool:
        """Whether a request that waits to be admitted waits for the store, which is asked the first time."""
        inputs, key = sequence.inputs, sequence.key
        reusable = self._storable(inputs.most_reusable(sequence.rows_from), inputs.media)
        if not sequence.options.cache or reusable < BLOCK:
            return False
        media = [span.identity for span in inputs.media]
        first = block_keys(self._store.root, inputs.tokens[:BLOCK], media, inputs.namespace)[0]
        under_way = self._restoring.get(first)
        was_read = key in self._asked and (under_way is None or under_way.key != key)
        if was_read or self._is_stuck():
            self.waiting.discard(key)
            return False
        if under_way is None and len(self._restoring) < MOST_RESTORING:
            self._ask(sequence, first, reusable)
        self.waiting.add(key)
        return True

    def _is_stuck(self) -> bool:
        """Whether the disk gives nothing any more. What it was asked for is given up then."""
        now = self._monitor.clock()
        stuck = [restoring for restoring in self._restoring.values() if now - restoring.since > PATIENCE]
        for restoring in stuck:
            self._stop(restoring)
        return bool(stuck)

    def _ask(self, sequence: ScheduledRequest, first: bytes, reusable: int) -> None:
        inputs = sequence.inputs
        media = [span.identity for span in inputs.media]
        reading = PrefixReading(
            keys=block_keys(self._store.root, inputs.tokens[:reusable], media, inputs.namespace),
            cached=self._cache_manager.cached(sequence),
            tokens_per_second=self._monitor.prompt_speed,
            taken=lambda block, rows: self._post(lambda: self._put(restoring, block, rows)),
            ended=lambda: self._post(lambda: self._end(first)),
        )
        self._asked.add(sequence.key)
        restoring = self._restoring[first] = _Restoring(sequence.key, inputs, reading, self._monitor.clock())
        self._store.read(reading)

    def _put(self, restoring: _Restoring, block: int, rows: list[SavedRows | None]) -> None:
        """Put a block into cells. Where there is no room, the rest of the prompt is computed."""
        reading, pinned, begin = restoring.reading, restoring.pinned, self._monitor.clock()
        self._store.took()
        at = 0 if pinned.slot is None else self._cache_manager.prefix_cache.length(pinned.slot)
        if reading.stopped or at != block * BLOCK:  # a failed step has all histories forgotten
            reading.stopped = True
            return
        parts = tuple(_none(sizes) if given is None else given
                      for given, sizes in zip(rows, self._saveable.row_bytes, strict=True))  # fmt: skip
        inputs = restoring.inputs
        media = (span.moved(-at) for span in spans_between(inputs.media, at, at + BLOCK))
        # Without groups: a block may end within one, where no prompt goes on.
        part = Inputs(inputs.tokens[at : at + BLOCK], tuple(media), namespace=inputs.namespace)
        self._before_write()
        try:
            self._cache_manager.pinned.restore(pinned, part, Saved(BLOCK, None, parts), begin)
        except ContextOverflowError:
            reading.stopped = True
        except Exception as error:  # no memory, say: the prompt is computed
            report(log, logging.ERROR, "a stored prefix could not be used: %s", error)
            reading.stopped = True
        else:
            restoring.since = self._monitor.clock()
            self._store.note_put(parts, restoring.since - begin)
            self._monitor.restored(restoring.key, BLOCK, begin)

    def give_way(self) -> bool:
        """Have what is being read make way for running requests; whether there are more cells to evict then."""
        holding = [restoring for restoring in self._restoring.values() if restoring.pinned.slot is not None]
        for restoring in holding:
            self._stop(restoring)
        return bool(holding)

    def _stop(self, restoring: _Restoring) -> None:
        """Read no more of a prompt. What is there may be used, and evicted."""
        restoring.reading.stopped = True
        self._cache_manager.pinned.release(restoring.pinned)

    def _end(self, first: bytes) -> None:
        self._cache_manager.pinned.release(self._restoring.pop(first).pinned)
        self.waiting.clear()

    # -- writing -------------------------------------------------------------------------------------------------------

    def left(self, request: QueuedRequest, slot: int | None) -> None:
        """A request has left the engine, and this sequence, whose history may be worth storing."""
        for restoring in self._restoring.values():
            if restoring.key == request.key:
                self._stop(restoring)
        self._asked.discard(request.key)
        self.waiting.discard(request.key)
        prefix_cache = self._cache_manager.prefix_cache
        if slot is None or prefix_cache.state(slot) != "finished" or prefix_cache.length(slot) < BLOCK:
            return
        history = prefix_cache.snapshot(slot)
        tokens = np.array(history.tokens[: self._storable(len(history), history.media)], np.int32)
        keys = block_keys(self._store.root, tokens, history.media, history.namespace)
        storing = _Storing(slot, history, keys)
        if len(self._storing) == MOST_HISTORIES:
            self._storing.popleft()
        self._storing.append(storing)
        self._store.look_for_missing(keys, lambda missing: self._post(lambda: self._found(storing, missing)))

    def _found(self, storing: _Storing, missing: list[BlockPart]) -> None:
        storing.missing = deque(missing)
        while self._storing and self._storing[0].missing is not None and not self._storing[0].missing:
            self._storing.popleft()

    def serve_gap(self, *, alone: bool) -> None:
        """Copy a bounded number of rows out of cells, if there are any to store and the disk keeps up."""
        begin = self._monitor.clock()
        if not self.busy or (begin < self._next_copy_at and not alone):
            return
        try:
            goes_on = self._copy(self._storing[0], self._slice)
        except Exception as error:  # no memory, say: it must not end the engine
            report(log, logging.ERROR, "a prefix could not be stored: %s", error)
            goes_on = False
        if not goes_on:
            self._storing.popleft()
        seconds = self._monitor.clock() - begin
        self._next_copy_at = begin + seconds / COPY_SHARE
        self._slice = self._slice // 2 if seconds > SLICE_SECONDS else self._slice + 1
        self._slice = min(max(self._slice, FEWEST_ROWS), BLOCK)

    def _copy(self, storing: _Storing, rows: int) -> bool:
        """Copy up to so many rows; False where nothing is left to copy, or the cells hold other inputs now."""
        missing = storing.missing
        if not missing:
            return False
        block = missing[0].block
        if not self._cache_manager.prefix_cache.begins_with(storing.slot, storing.history, (block + 1) * BLOCK):
            return False
        begin, end = block * BLOCK + storing.at, min(block * BLOCK + storing.at + rows, (block + 1) * BLOCK)
        storing.pieces.append(self._saveable.save(storing.slot, begin, end))
        storing.at += end - begin
        if storing.at == BLOCK:
            self._write(storing, block)
            storing.at, storing.pieces = 0, []
        return bool(missing)

    def _write(self, storing: _Storing, block: int) -> None:
        """Hand a copied block to the store, as far as the cells had all that tokens behind it see."""
        assert storing.missing is not None
        ranges = rows_of_block(block, self._saveable.first_seen)
        while storing.missing and storing.missing[0].block == block:
            kind = storing.missing.popleft().kind
            begin, end = ranges[kind]
            parts = [_from(piece[kind], begin) for piece in storing.pieces]
            if is_whole(np.concatenate([part.positions for part in parts]), begin, end):
                self._store.write(storing.keys[block], kind, parts, self._written if kind == 0 else self._wake)

    def _written(self, done: bool) -> None:
        """A block's first kind of layers is written, or could not be. Called by the store's thread."""
        if done:
            self._monitor.stored(BLOCK)
        self._wake(done)

    def _wake(self, _done: bool) -> None:
        """The disk may keep up again, for which histories wait. Called by the store's thread."""
        if self._storing:
            self._post(lambda: None)

    def flush(self, seconds: float) -> None:
        """Before the engine closes: copy and write what waits, for so long at most. Ends the store's threads."""
        until = time.monotonic() + seconds
        for storing in self._storing:
            if storing.missing is None:
                missing = self._store.missing_soon(storing.keys, until - time.monotonic())
                storing.missing = deque(missing or ())
            while self._store.wait_for_room(until - time.monotonic()) and self._copy(storing, BLOCK):
                pass
        self._storing.clear()
        self._store.close(until - time.monotonic())

    def _storable(self, n: int, media: Sequence[MediaSpan | MediaIdentity]) -> int:
        """How many of `n` inputs may be in blocks: those before the first image where blocks hold nothing of images."""
        return n if self._store.layout.stores_media or not media else min(n, media[0].begin)


def _from(saved: SavedRows, begin: int) -> SavedRows:
    """The rows at positions from `begin` on."""
    first = int(np.searchsorted(saved.positions, begin))
    return saved if first == 0 else SavedRows(saved.positions[first:], tuple(rows[first:] for rows in saved.rows))


def _none(sizes: Sequence[int]) -> SavedRows:
    """No rows, of layers whose rows have these bytes."""
    return SavedRows(np.empty(0, np.int32), tuple(np.empty((0, size), np.uint8) for size in sizes))
