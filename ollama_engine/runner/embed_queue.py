"""EmbedQueue: texts of all callers, batched together and computed between the steps of generation.

At most one batch comes between two steps, so that answers under way go on at a fair pace.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from typing import NamedTuple

from ollama_engine.errors import EngineError
from ollama_engine.kvcache import MAX_SEQUENCES
from ollama_engine.runner.core import Core
from ollama_engine.runner.embedder import Embedder, Text
from ollama_engine.runner.pooling import FloatArray

__all__ = ["EmbedJob", "EmbedQueue"]


class EmbedJob:
    """The texts of one call, as a task of the loop. `future` gets a vector for each, or the first error.

    Cancelling the future takes back what is not computed yet.
    """

    def __init__(self, queue: EmbedQueue, texts: Sequence[Text]) -> None:
        self.future: Future[list[FloatArray]] = Future()
        self.texts = texts
        self._queue = queue
        self._vectors: list[FloatArray | None] = [None] * len(texts)
        self._missing = len(texts)

    def run(self, core: Core) -> None:
        """Called by the loop: the texts wait for their batch."""
        self._queue.add(self, core)

    def fail(self, error: BaseException) -> None:
        """It ends early."""
        with contextlib.suppress(InvalidStateError):  # cancelled
            self.future.set_exception(error)

    def give(self, number: int, vector: FloatArray) -> None:
        """What came of one text."""
        self._vectors[number] = vector
        self._missing -= 1
        if not self._missing:
            with contextlib.suppress(InvalidStateError):
                self.future.set_result([found for found in self._vectors if found is not None])


class _Waiting(NamedTuple):
    job: EmbedJob
    number: int

    @property
    def text(self) -> Text:
        return self.job.texts[self.number]


class EmbedQueue:
    """Itself a task: each run computes one batch of up to `batch_size` tokens, or one text that is longer."""

    def __init__(self, embedder: Embedder, batch_size: int) -> None:
        self._embedder = embedder
        self._batch_size = batch_size
        self._waiting: deque[_Waiting] = deque()

    def add(self, job: EmbedJob, core: Core) -> None:
        """Called by the loop, for a job with texts."""
        idle = not self._waiting
        self._waiting.extend(_Waiting(job, number) for number in range(len(job.texts)))
        if idle:
            core.add_task(self)

    def run(self, core: Core) -> None:
        """Called by the loop while nothing else computes."""
        batch = self._take()
        try:
            results = self._embedder.compute([one.text for one in batch]) if batch else []
        except BaseException as error:
            for one in batch:
                one.job.fail(error)
            if not isinstance(error, (EngineError, MemoryError)):
                raise
        else:
            for one, result in zip(batch, results, strict=True):
                if isinstance(result, BaseException):
                    one.job.fail(result)
                else:
                    one.job.give(one.number, result)
        if self._waiting:
            core.add_task(self)

    def fail(self, error: BaseException) -> None:
        """Called by the loop when it ends first."""
        while self._waiting:
            self._waiting.popleft().job.fail(error)

    def _take(self) -> list[_Waiting]:
        """Those that are computed next, in the order in which they came."""
        batch: list[_Waiting] = []
        room = self._batch_size
        while self._waiting and len(batch) < MAX_SEQUENCES:
            one = self._waiting[0]
            if not one.job.future.done():
                n = len(one.text.tokens)
                if batch and n > room:
                    break
                room -= n
                batch.append(one)
            self._waiting.popleft()
        return batch
