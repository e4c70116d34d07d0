"""Waiting at a queue: what is put there, a deadline and an interrupt end it, whenever they come."""

from __future__ import annotations

import ctypes
import gc
import math
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any
from unittest.mock import patch

import pytest

from ollama_engine.runner.core.tasks import EngineTask
from ollama_engine.runner.request import call, channel
from ollama_engine.runner.request.channel import wait_at
from ollama_engine.runner.request.request import Request
from tests.runner.request.test_call import TwoAnswers
from tests.support.waiting import WAIT_SECONDS, interruptible


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "LOOK_SECONDS", 0.01)


def interrupted_queue(queue: SimpleQueue[Any]) -> Any:
    """The queue, but a signal comes when `get` has been looked up, all in C: Python looks for signals after `get`."""
    send = ctypes.PyDLL(None)["raise"]
    send.restype = partial(getattr, queue, "get")  # called with what `raise` returns, as the default of `getattr`
    return type("Interrupted", (), {"get": property(send), "put": queue.put, "_as_parameter_": int(signal.SIGINT)})()


def wait_for_a_task(queue: Any) -> None:
    task = EngineTask[None](lambda core: None)
    task._errors = queue
    task.result()


def wait_for_a_request(queue: Any) -> None:
    request = Request()
    request._events._bell = queue
    request.result()


def wait_for_a_call(queue: Any) -> None:
    with patch.object(call, "SimpleQueue", lambda: queue):
        TwoAnswers().wait()


@pytest.mark.skipif(sys.platform == "win32", reason="signals run in a thread of their own there")
@pytest.mark.parametrize("wait", [wait_at, wait_for_a_task, wait_for_a_request, wait_for_a_call])
def test_an_interrupt_that_comes_as_the_wait_begins_is_noticed(wait: Callable[[Any], object]) -> None:
    queue: SimpleQueue[Any] = SimpleQueue()
    freed = threading.Event()

    def free() -> None:
        freed.set()
        queue.put(None)

    timer = threading.Timer(1.5 * WAIT_SECONDS, free)
    timer.start()
    gc.collect()
    gc.disable()  # an interrupt in a finaliser of it is lost
    try:
        with interruptible(), pytest.raises(KeyboardInterrupt):
            wait(interrupted_queue(queue))
    finally:
        gc.enable()
        timer.cancel()
    assert not freed.is_set(), "it was noticed behind the wait only"


@pytest.mark.parametrize("seconds", [0.0, 0.03, -1.0, math.nan, -math.inf])
def test_a_wait_ends_at_its_deadline(seconds: float) -> None:
    queue: SimpleQueue[int] = SimpleQueue()
    deadline = time.monotonic() + seconds
    with pytest.raises(Empty):
        wait_at(queue, deadline)
    assert not time.monotonic() < deadline
    queue.put(7)
    assert wait_at(queue, deadline) == 7
