"""Calls: several requests and one value, cancelled together, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Callable

import pytest

from ollama_engine.errors import ClosedError
from ollama_engine.runner.request.call import EngineCall
from ollama_engine.runner.request.channel import Event, RequestChannel
from ollama_engine.runner.request.results import Chunk, Result, Usage, collect

LAST = Chunk(" end", (), finish_reason="stop", usage=Usage(1, 1, 0, 0.0, 0.0, 0.0))


class TwoAnswers(EngineCall[list[str]]):
    """Two requests, whose events `send` puts: while the call is handed in, or from where `later` is given."""

    def __init__(self, *events: tuple[int, Event], long: bool = False) -> None:
        super().__init__()
        self.events = events
        self.long = long
        self.channels: list[RequestChannel] = []
        self.threads: list[str] = []
        self.chunks: list[list[Chunk]] = [[], []]

    @property
    def takes_long(self) -> bool:
        return self.long

    @property
    def feeds_long(self) -> bool:
        return self.long

    def hand_in(self) -> None:
        self.threads.append(threading.current_thread().name)
        self.channels = [self.channel(), self.channel()]

    def feed(self) -> None:
        self.threads.append(threading.current_thread().name)
        for number, event in self.events:
            self.channels[number].send(event)

    def take(self, number: int, event: Chunk | Result) -> None:
        assert isinstance(event, Chunk)
        self.chunks[number].append(event)

    def value(self) -> list[str]:
        return [collect(chunks).text for chunks in self.chunks]


def wait(call: EngineCall[list[str]]) -> list[str]:
    return call.wait()


def coming(call: EngineCall[list[str]]) -> list[str]:
    return asyncio.run(call.coming())


both = pytest.mark.parametrize("value_of", [wait, coming])


@both
def test_events_of_all_requests_become_one_value(value_of: Callable[[EngineCall[list[str]]], list[str]]) -> None:
    call = TwoAnswers((1, Chunk("b", (1,))), (0, Chunk("a", (1, 2))), (1, LAST), (0, LAST))
    assert value_of(call) == ["a end", "b end"]
    assert not any(channel.unwanted for channel in call.channels)
    assert [channel.taken for channel in call.channels] == [2, 1]


@both
def test_the_first_error_ends_the_others(value_of: Callable[[EngineCall[list[str]]], list[str]]) -> None:
    call = TwoAnswers((1, ClosedError("the second one")))
    with pytest.raises(ClosedError, match="second"):
        value_of(call)
    assert all(channel.unwanted for channel in call.channels)


@both
def test_a_call_without_requests_has_its_value_at_once(value_of: Callable[[EngineCall[list[str]]], list[str]]) -> None:
    class Nothing(TwoAnswers):
        def hand_in(self) -> None:
            """Nothing to compute."""

        def value(self) -> list[str]:
            return []

    assert value_of(Nothing()) == []


@both
def test_what_goes_wrong_as_it_is_handed_in_cancels_it(value_of: Callable[[EngineCall[list[str]]], list[str]]) -> None:
    class Interrupted(TwoAnswers):
        def hand_in(self) -> None:
            super().hand_in()
            raise KeyboardInterrupt

    call = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        value_of(call)
    assert all(channel.unwanted for channel in call.channels)


def test_a_call_that_nobody_has_is_cancelled() -> None:
    call = TwoAnswers()
    call._put = lambda event: None
    call.hand_in()
    channels = call.channels
    del call
    gc.collect()
    assert all(channel.unwanted for channel in channels)


def test_no_event_loop_waits_for_what_takes_long() -> None:
    async def run(*, long: bool) -> list[str]:
        call = TwoAnswers((0, LAST), (1, LAST), long=long)
        await call.coming()
        return call.threads

    here = threading.current_thread().name
    assert asyncio.run(run(long=False)) == [here, here]
    threads = asyncio.run(run(long=True))
    assert here not in threads
    assert threads[1] == "ollama_engine call"


def test_a_cancelled_task_cancels_all_requests() -> None:
    async def run() -> TwoAnswers:
        call = TwoAnswers((0, LAST))
        task = asyncio.create_task(call.coming())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return call

    assert all(channel.unwanted for channel in asyncio.run(run()).channels)


def test_a_call_is_waited_for_once() -> None:
    call = TwoAnswers((0, LAST), (1, LAST))
    call.wait()
    for value_of in (wait, coming):
        with pytest.raises(AssertionError, match="once"):
            value_of(call)


def test_a_call_that_failed_is_freed_with_its_error() -> None:
    """At once: it may hold images, and no collection of cycles need come."""
    gc.disable()
    try:
        call = TwoAnswers((1, ClosedError("the second one")))
        gone = weakref.ref(call)
        with contextlib.suppress(ClosedError):
            call.wait()
        call.events = ()
        del call
        assert gone() is None
    finally:
        gc.enable()
