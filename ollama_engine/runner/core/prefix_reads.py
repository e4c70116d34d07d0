"""PrefixReads: prompts go on from blocks of the prefix store, which are put into cells between two steps.

A prompt of `LEAST` inputs or more waits, before it gets a cache sequence, until the store has looked for it. What is
read goes into a sequence of its own, block by block, and stays in the prefix cache, where the prompt then finds it as
it finds what an earlier request has left. Nothing here waits for a disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ollama_engine.errors import ContextOverflowError
from ollama_engine.kvcache import Saveable, SavedRows
from ollama_engine.runner.observe.monitor import Monitor, report
from ollama_engine.runner.prefix_store.block_keys import block_keys
from ollama_engine.runner.prefix_store.prefix_store import PrefixReading, PrefixStore
from ollama_engine.runner.request.inputs import Inputs, spans_between
from ollama_engine.runner.schedule.pinned_prefix import PinnedPrefix, Saved
from ollama_engine.runner.schedule.prefix_blocks import BLOCK, LEAST

if TYPE_CHECKING:
    from ollama_engine.runner.prefix.cache_manager import CacheManager
    from ollama_engine.runner.schedule.queued import QueuedRequest
    from ollama_engine.runner.schedule.sequence import ScheduledRequest

__all__ = ["PrefixReads"]

log = logging.getLogger(__name__)

MOST_RESTORING = 4
"""Prompts that are read at a time. More would evict each other before they are admitted."""
PATIENCE = 10.0
"""Seconds without a block after which a prompt is computed: a disk that is stuck holds up no request for longer."""


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


class PrefixReads:
    """For the engine's thread, which `post` has call a function while nothing computes. Any thread may post.

    `before_write` is called before cells are written: it drops the prepared step.
    """

    def __init__(
        self, store: PrefixStore, saveable: Saveable, cache_manager: CacheManager, monitor: Monitor,
        before_write: Callable[[], None], post: Callable[[Callable[[], object]], None],
    ) -> None:  # fmt: skip
        self._store = store
        self._post = post
        self._saveable = saveable
        self._cache_manager = cache_manager
        self._monitor = monitor
        self._before_write = before_write
        self._restoring: dict[bytes, _Restoring] = {}
        """By the key of their first inputs: prompts that begin alike are read one after the other."""
        self._asked: set[int] = set()
        """Requests that the store was asked about."""
        self.waiting: set[int] = set()
        """Requests that wait for it."""

    def ask(self, sequence: ScheduledRequest) -> bool:
        """Ask the store for the prefix of a request that is to be admitted, once; whether it waits for the answer."""
        inputs, key = sequence.inputs, sequence.key
        reusable = inputs.most_reusable(sequence.rows_from)
        if not sequence.options.cache or reusable < LEAST:
            return False
        media = [span.identity for span in inputs.media]
        first = block_keys(self._store.root, inputs.tokens[:LEAST], media, inputs.namespace)[-1]
        under_way = self._restoring.get(first)
        was_read = key in self._asked and (under_way is None or under_way.key != key)
        if was_read or self._is_stuck():
            self.waiting.discard(key)
            return False
        if under_way is None and len(self._restoring) < MOST_RESTORING:
            self._begin(sequence, first, reusable)
        self.waiting.add(key)
        return True

    def _is_stuck(self) -> bool:
        """Whether the disk gives nothing any more. What it was asked for is given up then."""
        now = self._monitor.clock()
        stuck = [restoring for restoring in self._restoring.values() if now - restoring.since > PATIENCE]
        for restoring in stuck:
            self._stop(restoring)
        return bool(stuck)

    def _begin(self, sequence: ScheduledRequest, first: bytes, reusable: int) -> None:
        inputs = sequence.inputs
        media = [span.identity for span in inputs.media]
        read = inputs.tokens[: self._end_of_reading(reusable)]
        reading = PrefixReading(
            keys=block_keys(self._store.root, read, media, inputs.namespace),
            images=[span.begin for span in media],
            cached=self._cache_manager.cached(sequence),
            tokens_per_second=self._monitor.prompt_speed,
            taken=lambda block, rows: self._post(lambda: self._put(restoring, block, rows)),
            ended=lambda: self._post(lambda: self._end(first)),
            left=self._monitor.left_stored,
        )
        self._asked.add(sequence.key)
        restoring = self._restoring[first] = _Restoring(sequence.key, inputs, reading, self._monitor.clock())
        self._store.read(reading)

    def _end_of_reading(self, reusable: int) -> int:
        """Where reading ends at the latest, for a prompt that may reuse so many inputs.

        The last input's logits are wanted, so it is computed again. A prompt that ends with a block reads that block,
        too, and gives this one input up, where that leaves all that it sees: windows and states have dropped some.
        """
        return reusable if any(self._saveable.first_seen(reusable + 1)) else reusable + 1

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

    def left(self, request: QueuedRequest) -> None:
        """A request has left the engine: nothing is read for it any more."""
        for restoring in self._restoring.values():
            if restoring.key == request.key:
                self._stop(restoring)
        self._asked.discard(request.key)
        self.waiting.discard(request.key)

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


def _none(sizes: Sequence[int]) -> SavedRows:
    """No rows, of layers whose rows have these bytes."""
    return SavedRows(np.empty(0, np.int32), tuple(np.empty((0, size), np.uint8) for size in sizes))
