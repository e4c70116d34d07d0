"""Threads that make the pieces of a file: several at once, handed on in order, and never far ahead of the writer."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from ollama_engine.closing import Closing
from ollama_engine.errors import ConfigError, Option

__all__ = ["Job", "Workers"]

T = TypeVar("T")

AHEAD = 4
"""Jobs for each thread that run, or are done and not taken: threads go on while the writer waits for the disk."""
HELD = 1 << 26
"""Most elements such jobs hold together, but for a single larger one. Data that several share is not counted."""


@dataclass(frozen=True)
class Job(Generic[T]):
    """`cost` is how many elements it holds."""

    run: Callable[[], T]
    cost: int


class Workers(Closing):
    """A context manager; `threads` are all cores if None. Raises ConfigError for fewer than 1."""

    def __init__(self, threads: int | None = None) -> None:
        threads = os.cpu_count() or 1 if threads is None else threads
        if threads < 1:
            raise ConfigError(Option("threads"), f" is 1 or more, got {threads}")
        self._ahead = AHEAD * threads
        self._pool = ThreadPoolExecutor(threads)

    def results(self, jobs: Iterable[Job[T]]) -> Iterator[T]:
        """Results of the jobs, in their order; raises the error of a job that fails. When it ends, none is running."""
        waiting: deque[tuple[int, Future[T]]] = deque()
        held = 0
        try:
            for job in jobs:
                while waiting and (len(waiting) >= self._ahead or held + job.cost > HELD):
                    cost, future = waiting.popleft()
                    held -= cost
                    yield future.result()
                waiting.append((job.cost, self._pool.submit(job.run)))
                held += job.cost
            while waiting:
                yield waiting.popleft()[1].result()
        finally:
            for _, future in waiting:
                future.cancel()
            for _, future in waiting:
                if not future.cancelled():
                    future.exception()

    def close(self) -> None:
        """Cancel the jobs that have not begun, and wait for the others."""
        self._pool.shutdown(cancel_futures=True)
