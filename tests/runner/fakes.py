"""Stand-ins for what computes, for tests of what plans: no model and no tensor."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from ollama_engine.errors import ComputeError, ContextOverflowError
from ollama_engine.input import Batch, Int32Array, MediaTraits
from ollama_engine.kvcache import CellUsage, SavedRows
from ollama_engine.runner.execute.executor import FloatArray, GraphCounts
from ollama_engine.runner.execute.graph import MediaRows
from ollama_engine.runner.request.channel import Event

N_VOCAB = 4


class FakeCache:
    """As many cells as anybody wants; it knows how many tokens each sequence has."""

    recurrent = None

    def __init__(self, n_cells: int = 1000) -> None:
        self.n_cells = n_cells
        self.lengths: Counter[int] = Counter()
        self.calls: list[tuple[object, ...]] = []

    @property
    def room(self) -> int:
        return self.n_cells - sum(self.lengths.values())

    @property
    def shiftable(self) -> FakeCache:
        return self

    @property
    def saveable(self) -> FakeCache:
        return self

    defragmentable = None

    @property
    def usage(self) -> CellUsage:
        return CellUsage(self.n_cells - self.room, self.room)

    def share(self, source: int, target: int, end: int) -> None:
        self.calls.append(("share", source, target, end))
        self.lengths[target] = end

    def remove(self, sequence: int, begin: int = 0, end: int | None = None) -> None:
        self.calls.append(("remove", sequence, begin))
        self.lengths[sequence] = min(self.lengths[sequence], begin)

    def can_resume(self, sequence: int, position: int) -> bool:
        return True

    def require_shift(self, sequence: int, begin: int, discard: int, without: Collection[int] = ()) -> None:
        """Accept every shift: moving cells needs no free ones here."""

    def shift(self, sequence: int, begin: int, discard: int) -> None:
        self.calls.append(("shift", sequence, begin, discard))
        self.lengths[sequence] -= discard

    def require_restore(self, saved: Sequence[SavedRows], without: Collection[int] = ()) -> None:
        """As in a cache, except that no cells are shared: `without` frees all tokens of its sequences."""
        free = self.room + sum(self.lengths[sequence] for sequence in without)
        if sum(len(part.positions) for part in saved) > free:
            raise ContextOverflowError(f"they do not fit: {free} cells are free")

    def restore(self, sequence: int, saved: Sequence[SavedRows]) -> None:
        self.require_restore(saved)
        self.calls.append(("restore", sequence))
        self.lengths[sequence] += sum(len(part.positions) for part in saved)

    def scrub(self) -> None:
        self.calls.append(("scrub",))

    def check(self) -> None:
        assert min(self.lengths.values(), default=0) >= 0


class FakeExecutor:
    """Logits that say the row; waits for `go`."""

    best_logits = splits = None

    batch_size = 8
    max_outputs = 8
    threads = 1

    def __init__(self) -> None:
        self.counts = GraphCounts()
        self.traits = MediaTraits()
        self.go = threading.Event()
        self.go.set()
        self.begun = threading.Event()
        self.fail_at: int | None = None
        self.steps = 0
        self.served: list[int] = []
        self.closed = False
        self._prepared: Batch | None = None
        self._in_flight: Batch | None = None

    @property
    def computing(self) -> bool:
        return self._in_flight is not None

    def prepare(self, batch: Batch, needed: Sequence[int] = ()) -> None:
        assert self._prepared is None
        self._prepared = batch

    def media_rows(self, batch: Batch, failed: object) -> MediaRows:
        return MediaRows()

    def launch(self, tokens: Int32Array, media: MediaRows) -> None:
        assert self._prepared is not None
        assert self._in_flight is None
        self._in_flight, self._prepared = self._prepared, None
        self.counts.built += 1
        self.served += self._in_flight.first_positions()
        self.begun.set()

    @contextmanager
    def results(self) -> Iterator[FloatArray]:
        batch, self._in_flight = self._in_flight, None
        assert batch is not None
        assert self.go.wait(20)
        self.steps += 1
        if self.fail_at == self.steps - 1:
            raise ComputeError("told to")
        yield np.zeros((len(batch.outputs), N_VOCAB), dtype=np.float32)

    def scrap(self) -> None:
        self._prepared = None

    def close(self) -> None:
        self.closed = True
        self._in_flight = self._prepared = None


class Events:
    """A mailbox that is looked at in the end."""

    def __init__(self) -> None:
        self.all: list[Event] = []

    def put(self, event: Event) -> None:
        self.all.append(event)
