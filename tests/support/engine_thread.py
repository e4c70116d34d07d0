"""Tests decide when an engine's thread goes on: what they look at meanwhile does not depend on who is quicker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from ollama_engine import Engine
from ollama_engine.runner.core.tasks import Update
from tests.support.waiting import WAIT_SECONDS, eventually


@contextmanager
def held(engine: Engine) -> Iterator[None]:
    """The engine's thread waits between two steps; what is asked for in this block comes to the core together."""
    begun, go = threading.Event(), threading.Event()

    def wait(_: object) -> None:
        begun.set()
        go.wait(2 * WAIT_SECONDS)

    engine._engine_thread.post(Update(wait))
    try:
        assert begun.wait(WAIT_SECONDS)
        yield
    finally:
        go.set()


@contextmanager
def held_in(thing: Any, method: str, calls: int = 0) -> Iterator[Callable[[], None]]:
    """The thread that calls this method waits in it, after so many calls that go through.

    The block begins at once; what it gets waits until the method has been called. The thread goes on with its end.
    """
    original, begun, go, left = getattr(thing, method), threading.Event(), threading.Event(), [None] * calls

    def wait(*args: Any, **keywords: Any) -> Any:
        if left:
            left.pop()
        else:
            begun.set()
            assert go.wait(2 * WAIT_SECONDS)
        return original(*args, **keywords)

    def is_held() -> None:
        assert begun.wait(WAIT_SECONDS)

    with patch.object(thing, method, wait):
        try:
            yield is_held
        finally:
            go.set()


def idle(engine: Engine) -> None:
    """Wait until all that was asked for has ended, and its last step is in the metrics and the timeline."""
    thread = engine._engine_thread
    eventually(lambda: not thread.coming and not engine.slots())  # in this order: what comes is in a slot then
    for _ in range(2):  # the last step may be under way; it has been recorded when the next one is over
        done = threading.Event()
        thread.post(Update(lambda _, done=done: done.set()))
        assert done.wait(WAIT_SECONDS)
