"""EmbedQueue: texts of all callers, batched together and computed between the steps of generation.

At most one batch comes between two steps, so that answers under way go on at a fair pace.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby

from ollama_engine.errors import ClosedError, ComputeError, DeadlineError, EngineError, NoMemoryError, Option
from ollama_engine.runner.core.engine_core import EngineCore
from ollama_engine.runner.core.request_queue import FAIR_EVERY
from ollama_engine.runner.embed.embedder import Embedder
from ollama_engine.runner.embed.job import EmbedJob, Text
from ollama_engine.runner.embed.pooling import FloatArray
from ollama_engine.runner.observe.monitor import Monitor, outcome_of, report

__all__ = ["EmbedQueue", "Ending", "Piece"]

log = logging.getLogger(__name__)

MAX_TEXTS = 64
"""Texts of one batch, so that it delays answers under way by little."""


class Piece:
    """Some texts of a job, `first` being the number of the first of them, as a task of the loop."""

    def __init__(self, queue: EmbedQueue, job: EmbedJob, first: int, texts: Sequence[Text]) -> None:
        self._queue = queue
        self._job = job
        self._first = first
        self._texts = texts

    def run(self, core: EngineCore) -> None:
        """Called by the loop: the texts wait for their batch."""
        self._job.pending.extend(enumerate(self._texts, self._first))
        self._queue.add(self._job, core)

    def fail(self, error: BaseException) -> None:
        """Called by the loop when it ends first."""
        self._job.end(error)


class Ending:
    """A job that its caller's side ends, for `error` or for having no texts, as a task of the loop."""

    def __init__(self, queue: EmbedQueue, job: EmbedJob, error: BaseException | None) -> None:
        self._queue = queue
        self._job = job
        self._error = error

    def run(self, core: EngineCore) -> None:
        """Called by the loop: it is counted, and its texts wait no longer."""
        self._queue.end(self._job, self._error)

    def fail(self, error: BaseException) -> None:
        """Called by the loop when it ends first; what went wrong before says more."""
        self._job.end(self._error)


class EmbedQueue:
    """Itself a task: each run computes one batch of up to `batch_size` tokens, or one text that is longer.

    Jobs of the same priority give a text in turn, so that a short one does not wait for a long one.
    """

    def __init__(self, embedder: Embedder, batch_size: int, monitor: Monitor) -> None:
        self._embedder = embedder
        self._batch_size = batch_size
        self._monitor = monitor
        self._jobs: list[EmbedJob] = []
        """Those that have not ended; who gave the last texts is last."""
        self._scheduled = False
        self._arrivals = 0
        self._batches = 0

    def add(self, job: EmbedJob, core: EngineCore) -> None:
        """Called by the loop, for a job of which something came."""
        self._arrive(job)
        if not self._scheduled:
            self._schedule(core)

    def end(self, job: EmbedJob, error: BaseException | None) -> None:
        """Called by the loop, for a job that ends unless it has; perhaps before anything of it came."""
        self._arrive(job)
        if job in self._jobs:
            self._leave(job, error)

    def _arrive(self, job: EmbedJob) -> None:
        if job.key is None:
            job.key = self._arrivals
            self._arrivals += 1
            self._monitor.embed_arrived(job.key, job.options.priority)
            self._jobs.append(job)

    def run(self, core: EngineCore) -> None:
        """Called by the loop while nothing else computes."""
        self._scheduled = False
        self._sweep()
        batch = self._take()
        if batch:
            self._compute(batch)
        if any(job.pending for job in self._jobs):
            self._schedule(core)

    def fail(self, error: BaseException) -> None:
        """Called by the loop when it ends first."""
        for job in self._jobs[:]:
            self._leave(job, error)

    def _schedule(self, core: EngineCore) -> None:
        self._scheduled = True
        core.add_task(self)

    # -- who is served -------------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Those that were cancelled, or are late, end."""
        now = self._monitor.clock()
        for job in self._jobs[:]:
            timeout = job.options.timeout
            if job.ended:  # by a piece that the loop refused
                self._leave(job, job.error)
            elif job.cancelled:
                self._leave(job, ClosedError("the call for embeddings was cancelled"))
            elif timeout is not None and now - job.submitted_at > timeout:
                self._leave(job, DeadlineError(f"the request has not ended within its timeout of {timeout} s"))

    def _take(self) -> list[tuple[EmbedJob, list[tuple[int, Text]]]]:
        """The texts that are computed next, by job."""
        taken: dict[EmbedJob, list[tuple[int, Text]]] = {}
        room = self._batch_size
        for count, job in enumerate(self._turns()):
            n = len(job.pending[0][1].tokens)
            if count == MAX_TEXTS or (count and n > room):
                break
            room -= n
            taken.setdefault(job, []).append(job.pending.popleft())
        self._batches += bool(taken)
        self._jobs = [*(job for job in self._jobs if job not in taken), *taken]
        return list(taken.items())

    def _turns(self) -> Iterable[EmbedJob]:
        """Whose text is next, while they have some.

        By priority, but of `FAIR_EVERY` batches one begins with the job that came first.
        """
        waiting = [job for job in self._jobs if job.pending]
        if waiting and self._batches % FAIR_EVERY == FAIR_EVERY - 1:
            yield min(waiting, key=_arrival)
        for _, alike in groupby(sorted(waiting, key=_turn), key=_turn):
            ready = deque(alike)
            while ready:
                job = ready.popleft()
                if job.pending:
                    yield job
                    ready.append(job)

    # -- computing -----------------------------------------------------------------------------------------------------

    def _compute(self, batch: Sequence[tuple[EmbedJob, list[tuple[int, Text]]]]) -> None:
        texts = [text for _, given in batch for _, text in given]
        begin = self._monitor.clock()
        try:
            vectors = self._embedder.compute(texts)
        except Exception as error:
            told = _told(error)
            for job, _ in batch:
                self._leave(job, told)
            return
        self._monitor.embedded(self._batches, [text.tokens for text in texts], begin)
        at = 0
        for job, given in batch:
            end = at + len(given)
            self._give(job, given, vectors[at:end])
            at = end

    def _give(
        self, job: EmbedJob, given: Sequence[tuple[int, Text]], vectors: Sequence[FloatArray | EngineError]
    ) -> None:
        try:
            complete = job.give([number for number, _ in given], [text for _, text in given], vectors)
        except Exception as error:
            self._leave(job, _told(error))
            return
        if complete:
            self._leave(job, None)

    def _leave(self, job: EmbedJob, error: BaseException | None) -> None:
        """A job has ended; the feeder may have ended it before."""
        assert job.key is not None
        job.pending.clear()
        self._jobs.remove(job)
        # Before the caller knows, so that it finds what it expects.
        self._monitor.embed_left(job.key, "stop" if error is None else outcome_of(error))
        job.end(error)


def _told(error: Exception) -> Exception:
    """What callers hear of a batch that could not be computed."""
    if type(error) is MemoryError:
        return NoMemoryError(
            "there is no memory left to embed these texts",
            advice=["give shorter ones", ("lower ", Option("batch_size"))],
        )
    if isinstance(error, EngineError):
        return error
    report(log, logging.ERROR, "a batch of texts failed: %r", error, exc_info=log.isEnabledFor(logging.DEBUG))
    told = ComputeError(f"the texts could not be embedded, for a fault of the engine: {error!r}")
    told.__cause__ = error
    return told


def _arrival(job: EmbedJob) -> int:
    assert job.key is not None
    return job.key


def _turn(job: EmbedJob) -> int:
    return -job.options.priority
