"""EmbedQueue: texts of all callers, batched together and computed between the steps of generation.

At most one batch comes between two steps, so that answers under way go on at a fair pace.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError

from ollama_engine.errors import EngineError, NoMemoryError, Option
from ollama_engine.kvcache import MAX_SEQUENCES
from ollama_engine.runner.core import Core
from ollama_engine.runner.embedder import Embedder, Text
from ollama_engine.runner.pooling import FloatArray
from ollama_engine.runner.prompts import numbered

__all__ = ["EmbedJob", "EmbedQueue"]


def _no_memory() -> NoMemoryError:
    return NoMemoryError(
        "there is no memory left to embed these texts",
        advice=["give shorter ones", ("lower ", Option("batch_size"))],
    )


class EmbedJob:
    """The texts of one call, as a task of the loop. `future` gets a vector for each, or the first error.

    Cancelling the future takes back what is not computed yet.
    """

    def __init__(self, queue: EmbedQueue, texts: Sequence[Text], name: str | None) -> None:
        self.future: Future[list[FloatArray]] = Future()
        self.texts = texts
        self.taken = 0
        """Of the texts, so many have been put into a batch; the queue counts."""
        self._queue = queue
        self._name = name
        """What the caller calls the texts; None for a single one."""
        self._vectors: list[FloatArray | None] = [None] * len(texts)
        self._missing = len(texts)

    def run(self, core: Core) -> None:
        """Called by the loop: the texts wait for their batch."""
        self._queue.add(self, core)

    def fail(self, error: BaseException) -> None:
        """It ends early."""
        with contextlib.suppress(InvalidStateError):  # cancelled
            self.future.set_exception(error)

    def give(self, number: int, vector: FloatArray | EngineError) -> None:
        """What came of one text."""
        if isinstance(vector, EngineError):
            self.fail(vector if self._name is None else numbered(vector, self._name, number))
            return
        self._vectors[number] = vector
        self._missing -= 1
        if not self._missing:
            with contextlib.suppress(InvalidStateError):
                self.future.set_result([found for found in self._vectors if found is not None])


class EmbedQueue:
    """Itself a task: each run computes one batch of up to `batch_size` tokens, or one text that is longer.

    Jobs give a text in turn, so that a short one does not wait for a long one.
    """

    def __init__(self, embedder: Embedder, batch_size: int) -> None:
        self._embedder = embedder
        self._batch_size = batch_size
        self._jobs: deque[EmbedJob] = deque()

    def add(self, job: EmbedJob, core: Core) -> None:
        """Called by the loop, for a job with texts."""
        idle = not self._jobs
        self._jobs.append(job)
        if idle:
            core.add_task(self)

    def run(self, core: Core) -> None:
        """Called by the loop while nothing else computes."""
        batch = self._take()
        try:
            results = self._embedder.compute([job.texts[number] for job, number in batch]) if batch else []
        except BaseException as error:
            told = _no_memory() if type(error) is MemoryError else error
            for job, _ in batch:
                job.fail(told)
            if not isinstance(error, (EngineError, MemoryError)):
                raise
        else:
            for (job, number), result in zip(batch, results, strict=True):
                job.give(number, result)
        if self._jobs:
            core.add_task(self)

    def fail(self, error: BaseException) -> None:
        """Called by the loop when it ends first."""
        while self._jobs:
            self._jobs.popleft().fail(error)

    def _take(self) -> list[tuple[EmbedJob, int]]:
        """The texts that are computed next, by job and number."""
        batch: list[tuple[EmbedJob, int]] = []
        room = self._batch_size
        while self._jobs and len(batch) < MAX_SEQUENCES:
            job = self._jobs[0]
            if not job.future.done():
                n = len(job.texts[job.taken].tokens)
                if batch and n > room:
                    break
                room -= n
                batch.append((job, job.taken))
                job.taken += 1
                if job.taken < len(job.texts):
                    self._jobs.append(job)
            self._jobs.popleft()
        return batch
