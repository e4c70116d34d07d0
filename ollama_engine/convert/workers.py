"""Threads that make the pieces of a file: several at once, handed on in order, and never far ahead of the writer."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

from ollama_engine.errors import ConfigError

__all__ = ["Workers"]

T = TypeVar("T")


class Workers:
    """A context manager; `threads` are all cores if None. Raises ConfigError for fewer than 1."""

    def __init__(self, threads: int | None = None) -> None:
        threads = os.cpu_count() or 1 if threads is None else threads
        if threads < 1:
            raise ConfigError(f"threads is 1 or more, got {threads}")
        self._ahead = 2 * threads
        self._pool = ThreadPoolExecutor(threads)

    def results(self, jobs: Iterable[Callable[[], T]], at_most: int | None = None) -> Iterator[T]:
        """What the jobs return, in their order; raises what one of them raises. When it ends, none is running.

        `at_most` as many are in work, or done and not taken.
        """
        ahead = self._ahead if at_most is None else min(self._ahead, at_most)
        waiting: deque[Future[T]] = deque()
        try:
            for job in jobs:
                waiting.append(self._pool.submit(job))
                if len(waiting) >= ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
            for future in waiting:
                if not future.cancelled():
                    future.exception()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)
