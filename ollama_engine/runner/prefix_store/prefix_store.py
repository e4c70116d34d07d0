"""PrefixStore: looks for prompts on disk, reads their blocks and writes new ones, in threads of its own.

The engine's thread asks and is called back; it never waits for a disk. Callbacks run in the store's threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Condition, Semaphore, Thread

from ollama_engine.kvcache import SavedRows
from ollama_engine.ml.device.placement import usable_cpus
from ollama_engine.runner.prefix_store.block_file import block_bytes
from ollama_engine.runner.prefix_store.block_folder import BlockFolder
from ollama_engine.runner.prefix_store.in_order import in_order
from ollama_engine.runner.prefix_store.speeds import SharedSpeed, Speed
from ollama_engine.runner.prefix_store.step_budget import StepBudget
from ollama_engine.runner.prefix_store.stored_prefix import (
    BlockPart,
    FirstSeen,
    blocks_needed,
    longest_stored,
    rows_of_block,
)
from ollama_engine.runner.schedule.prefix_blocks import BLOCK, MOST_PENDING, blocks_ahead

__all__ = ["PrefixReading", "PrefixStore", "StoreLayout"]

log = logging.getLogger(__name__)

READERS = 2
"""Prompts that are looked for, and read, at a time."""
BLOCKS_AT_ONCE = 4
"""Most blocks of a prompt that are read at a time, one for each CPU: most of the time goes into checksums."""
BLOCKS_LOOKED_FOR = 32
"""Blocks that are looked for at once: some 0.1 ms."""


@dataclass(frozen=True)
class StoreLayout:
    """How blocks of a model look, by the kinds of layers of its cache."""

    row_bytes: tuple[tuple[int, ...], ...]
    """See `Saveable.row_bytes`."""
    first_seen: FirstSeen
    image_kinds: tuple[int, ...] = ()
    """See `Saveable.image_kinds`."""

    @property
    def block_bytes(self) -> int:
        """Bytes of the files of a prompt's first block, with one image."""
        return self.nbytes(self.parts_of(0, [0]), [0])

    def positions(self, part: BlockPart, images: Sequence[int]) -> Sequence[int]:
        """The positions that a part of a block has entries of, where these positions of the prompt are images."""
        begin, end = rows_of_block(part.block, self.first_seen)[part.kind]
        return [p for p in images if begin <= p < end] if part.kind in self.image_kinds else range(begin, end)

    def parts_of(self, block: int, images: Sequence[int]) -> list[BlockPart]:
        """The files of a block: one for each kind of layers that stores something of it."""
        parts = (BlockPart(block, kind) for kind in range(len(self.row_bytes)))
        return [part for part in parts if self.positions(part, images)]

    def nbytes(self, parts: Sequence[BlockPart], images: Sequence[int]) -> int:
        """Bytes of the files of these parts."""
        return sum(block_bytes(len(self.positions(part, images)), self.row_bytes[part.kind]) for part in parts)


@dataclass(eq=False)
class PrefixReading:
    """Blocks of one prompt that are looked for, and read where that pays."""

    keys: Sequence[bytes]
    images: Sequence[int]
    """Positions of its media items."""
    cached: int
    """Inputs that the prompt would not compute without them."""
    tokens_per_second: float | None
    """How fast prompts are computed; None: not known yet."""
    taken: Callable[[int, list[SavedRows | None]], None]
    """Called with each block, in order, and its rows of each kind; None: not needed."""
    ended: Callable[[], None]
    """Called once, at the end; also where nothing was read."""
    left: Callable[[int], None] = lambda tokens: None
    """Called with the tokens that are stored where none of them is read, because computing them is quicker."""
    stopped: bool = False
    """Set by the engine where no more is wanted."""


class PrefixStore:
    """Blocks of one model in a folder. `close` it."""

    def __init__(self, folder: BlockFolder, root: bytes, layout: StoreLayout) -> None:
        self.root = root
        self.layout = layout
        self._folder = folder
        self._read_speed = SharedSpeed()
        self._put_speed = Speed()
        ahead = blocks_ahead(layout.block_bytes)
        self._ahead = Semaphore(ahead)
        """Blocks that may be read before the engine has taken them."""
        self._at_once = min(BLOCKS_AT_ONCE, usable_cpus(), ahead)
        self._closed = False
        self.budget = StepBudget()
        """Of the thread that writes."""
        self._readings: SimpleQueue[PrefixReading | None] = SimpleQueue()
        self._writings: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._pending = 0
        self._settled = Condition()
        self._threads = [Thread(target=self._read_all, name="ollama_engine prefix reader", daemon=True)
                         for _ in range(READERS)]  # fmt: skip
        self._threads.append(Thread(target=self._write_all, name="ollama_engine prefix writer", daemon=True))
        for thread in self._threads:
            thread.start()

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, reading: PrefixReading) -> None:
        """Look for a prompt's blocks, and read them. The engine says `took` of each that it is given."""
        self._readings.put(reading)

    def took(self) -> None:
        """The engine has a block: another may be read."""
        self._ahead.release()

    def _read_all(self) -> None:
        while (reading := self._readings.get()) is not None:
            try:
                self._read(reading)
            except Exception:
                log.exception("a stored prefix could not be read")
            reading.ended()

    def _read(self, reading: PrefixReading) -> None:
        layout, images = self.layout, reading.images

        def is_there(part: BlockPart) -> bool:
            return not layout.positions(part, images) or self._has(reading.keys, part)

        n = longest_stored(len(reading.keys), layout.first_seen, is_there)
        parts = [part for part in blocks_needed(n, layout.first_seen) if layout.positions(part, images)]
        tokens = n * BLOCK - reading.cached
        if not self.pays(tokens, layout.nbytes(parts, images), reading.tokens_per_second):
            if tokens >= BLOCK:
                reading.left(tokens)
            return
        kinds = [[part.kind for part in parts if part.block == block] for block in range(n)]
        self._read_blocks(reading, kinds)

    def _read_blocks(self, reading: PrefixReading, kinds: Sequence[Sequence[int]]) -> None:
        """Read these kinds of each block, and give them to the engine, up to the first that is not there."""
        over = False

        def allowed() -> bool:
            while not (over or reading.stopped or self._closed):
                if self._ahead.acquire(timeout=1.0):
                    return True
            return False

        def read(block: int) -> list[SavedRows | None] | None:
            rows = None
            try:
                rows = self._read_block(reading, kinds[block], block)
            except Exception:
                log.exception("a stored prefix could not be read")
            if rows is None:
                self.took()
            return rows

        for block, rows in enumerate(in_order(len(kinds), self._at_once, allowed, read)):
            if rows is None:
                over = True
            elif over:
                self.took()
            else:
                reading.taken(block, rows)
                if block == 0:
                    self._folder.count_hit()

    def _read_block(self, reading: PrefixReading, kinds: Sequence[int], block: int) -> list[SavedRows | None] | None:
        """The rows of these kinds; None where they are gone, or no longer wanted."""
        rows: list[SavedRows | None] = [None] * len(self.layout.row_bytes)
        for kind in kinds:
            rows[kind] = self._timed_read(reading.keys[block], kind)
            if rows[kind] is None:
                return None
        return None if reading.stopped else rows

    def _has(self, keys: Sequence[bytes], part: BlockPart) -> bool:
        return self._folder.has(keys[part.block], part.kind)

    def pays(self, tokens: int, nbytes: int, tokens_per_second: float | None) -> bool:
        """Whether reading is quicker than computing, as far as it is known how fast either is."""
        if tokens < BLOCK:
            return False
        if tokens_per_second is None:
            return True
        return self._read_speed.seconds(nbytes) + self._put_speed.seconds(nbytes) < tokens / tokens_per_second

    def note_put(self, parts: Sequence[SavedRows], seconds: float) -> None:
        """The engine took so long to put a block into cells, which may be another machine's."""
        self._put_speed.note(sum(rows.nbytes for part in parts for rows in part.rows), seconds)

    def _timed_read(self, key: bytes, kind: int) -> SavedRows | None:
        nbytes = 0
        self._read_speed.begin()
        try:
            rows = self._folder.read(key, kind, self.layout.row_bytes[kind])
            nbytes = sum(part.nbytes for part in rows.rows) if rows is not None else 0
        finally:
            self._read_speed.end(nbytes)
        return rows

    # -- writing -------------------------------------------------------------------------------------------------------

    @property
    def room(self) -> bool:
        """Whether more may be given to write."""
        return self._pending < MOST_PENDING

    def wait_for_room(self, seconds: float) -> bool:
        """Whether there is room within so many seconds."""
        with self._settled:
            return self._settled.wait_for(lambda: self.room, timeout=max(0.0, seconds))

    def look_for_missing(
        self, keys: Sequence[bytes], images: Sequence[int], then: Callable[[list[BlockPart]], None]
    ) -> None:
        """Call back with what is not stored of these blocks."""
        self._writings.put(lambda: then(self._missing(keys, images)))

    def missing_soon(self, keys: Sequence[bytes], images: Sequence[int], seconds: float) -> list[BlockPart] | None:
        """What is not stored of these blocks; None where the disk does not say so within so many seconds."""
        answers: SimpleQueue[list[BlockPart]] = SimpleQueue()
        self.look_for_missing(keys, images, answers.put)
        with suppress(Empty):
            return answers.get(timeout=max(0.0, seconds))
        return None

    def _missing(self, keys: Sequence[bytes], images: Sequence[int]) -> list[BlockPart]:
        """What is not stored of these blocks, in order."""
        missing = list[BlockPart]()
        for block in range(len(keys)):
            missing += [part for part in self.layout.parts_of(block, images) if not self._has(keys, part)]
            if block % BLOCKS_LOOKED_FOR == 0:
                self.budget.pause()
        return missing

    def write(self, key: bytes, kind: int, saved: SavedRows, then: Callable[[bool], None]) -> None:
        """Write a block behind what was given before; calls back with whether it is stored."""
        nbytes = sum(rows.nbytes for rows in saved.rows)
        with self._settled:
            self._pending += nbytes

        def work() -> None:
            try:
                done = self._folder.write(key, kind, saved, self.budget)
            finally:
                with self._settled:
                    self._pending -= nbytes
                    self._settled.notify_all()
            then(done)

        self._writings.put(work)

    def _write_all(self) -> None:
        while (work := self._writings.get()) is not None:
            try:
                work()
            except Exception:
                log.exception("a prefix could not be stored")
            self.budget.pause()

    # -- lifetime ------------------------------------------------------------------------------------------------------

    def close(self, seconds: float) -> None:
        """Wait up to so long for what is being written, and end the threads."""
        self._closed = True
        for _ in range(READERS):
            self._readings.put(None)
        with self._settled:
            self._settled.wait_for(lambda: self._pending == 0, timeout=seconds)
        self._writings.put(None)
