"""Preparing: the time in which a caller's thread makes a request of a prompt, before the engine has it."""

from __future__ import annotations

import time
from typing import Protocol

from ollama_engine.errors import ClosedError, DeadlineError
from ollama_engine.runner.request.channel import Cancellable, RequestChannel

__all__ = ["Preparing", "late"]


class Timed(Protocol):
    """A request that knows when it was asked for."""

    submitted_at: float
    prepare_seconds: float


class Preparing:
    """Rendering, tokenizing, reading images. It begins with the call, and so does the request's `timeout`.

    `check` is called every few milliseconds of a long text's tokenizing, and between these works.
    """

    def __init__(self, flag: Cancellable, timeout: float | None) -> None:
        self.began_at = time.perf_counter()
        self.flag = flag
        """Says whether the request was cancelled."""
        self._timeout = timeout

    def check(self) -> None:
        """Raise ClosedError where the request was cancelled, DeadlineError where its time is over."""
        flag = self.flag
        if flag.unwanted if isinstance(flag, RequestChannel) else flag.cancelled:
            raise ClosedError("the request was cancelled, or its stream was closed, before the engine had it")
        if self._timeout is not None and self.seconds() > self._timeout:
            raise late(self._timeout)

    def mark(self, request: Timed) -> None:
        """Note in a request that it is made now, and when that began."""
        request.submitted_at, request.prepare_seconds = self.began_at, self.seconds()

    def seconds(self) -> float:
        """Seconds since it began."""
        return time.perf_counter() - self.began_at


def late(timeout: float) -> DeadlineError:
    """The error for a request whose timeout is over."""
    return DeadlineError(f"the request has not ended within its timeout of {timeout} s")
