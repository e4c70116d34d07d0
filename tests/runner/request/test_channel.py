"""RequestChannel, groups of them, and the helper that cancels what is interrupted; without an engine."""

from __future__ import annotations

import asyncio
import gc
import threading
from queue import SimpleQueue

import pytest

from ollama_engine.errors import ClosedError
from ollama_engine.runner.request.astream import AsyncMailbox, AsyncStream
from ollama_engine.runner.request.channel import (
    CancelFlag,
    Event,
    RequestChannel,
    arun_or_cancel,
    result_of,
    run_or_cancel,
)
from ollama_engine.runner.request.results import Chunk, Result, Usage
from tests.support.waiting import join

LAST = Chunk(" end", (2,), finish_reason="stop", usage=Usage(1, 2, 0, 0.0, 0.0, 0.0))


class Interrupt(BaseException):
    pass


def interrupted() -> None:
    raise Interrupt


def channel_of(call: CancelFlag | None = None) -> tuple[RequestChannel, SimpleQueue[Event]]:
    events: SimpleQueue[Event] = SimpleQueue()
    return RequestChannel(events, call), events


@pytest.mark.parametrize("error", [Interrupt, KeyboardInterrupt, ValueError, GeneratorExit])
def test_whatever_is_raised_cancels(error: type[BaseException]) -> None:
    def fail(value: int, *, other: int) -> int:
        raise error(value + other)

    channel, _ = channel_of()
    with pytest.raises(error, match="3"):
        run_or_cancel(channel, fail, 1, other=2)
    assert channel.cancelled
    assert channel.unwanted


def test_a_call_that_returns_cancels_nothing() -> None:
    channel, _ = channel_of()
    assert run_or_cancel(channel, divmod, 7, 2) == (3, 1)
    assert not channel.unwanted


def test_a_cancelled_task_cancels() -> None:
    channel, _ = channel_of()

    async def work() -> None:
        task = asyncio.create_task(arun_or_cancel(channel, asyncio.sleep, 60, None))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(work())
    assert channel.cancelled
    other, _ = channel_of()

    async def ready() -> str:
        return "value"

    assert asyncio.run(arun_or_cancel(other, ready)) == "value"
    assert not other.cancelled


def test_requests_of_one_call_are_cancelled_together() -> None:
    call = CancelFlag()
    channels = [channel_of(call)[0] for _ in range(3)]
    channels[0].cancelled = True
    assert [channel.unwanted for channel in channels] == [True, False, False]
    with pytest.raises(Interrupt):
        run_or_cancel(call, interrupted)
    assert all(channel.unwanted for channel in channels)


def test_a_dropped_handle_cancels() -> None:
    class Handle:
        pass

    channel, _ = channel_of()
    handle = Handle()
    channel.watch(handle)
    assert not channel.unwanted
    del handle
    gc.collect()
    assert channel.unwanted
    assert not channel.cancelled


def test_what_ends_a_request_ends_its_channel() -> None:
    for event, ends in ((Chunk("a", (1,)), False), (LAST, True), (Result(None), True), (ClosedError("x"), True)):
        channel, events = channel_of()
        channel.send(event)
        assert events.get_nowait() is event
        assert channel.ended == ends
        assert channel.note(event) == channel.done == ends
    assert channel.taken == 0


def test_a_mailbox_that_raises_gets_nothing_more() -> None:
    class Broken:
        n = 0

        def put(self, event: Event) -> None:
            self.n += 1
            raise ZeroDivisionError

    mailbox = Broken()
    channel = RequestChannel(mailbox)
    for _ in range(3):
        channel.send(Chunk("a"))
    assert (mailbox.n, channel.unwanted, channel.ended) == (1, True, False)


def test_one_result_or_what_ended_the_request_instead() -> None:
    assert result_of(Result([1, 2])) == [1, 2]
    error = ClosedError("it was cancelled")
    with pytest.raises(ClosedError) as caught:
        result_of(error)
    assert caught.value is error


def test_events_cross_to_an_event_loop() -> None:
    async def work() -> list[int]:
        mailbox: AsyncMailbox[int] = AsyncMailbox()
        thread = threading.Thread(target=lambda: [mailbox.put(i) for i in range(1000)])
        thread.start()
        found = [await mailbox.get() for _ in range(1000)]
        join(thread)
        return found

    assert asyncio.run(work()) == list(range(1000))


def test_nobody_looks_into_the_mailbox_of_a_closed_event_loop() -> None:
    async def make() -> AsyncMailbox[int]:
        return AsyncMailbox()

    mailbox = asyncio.run(make())
    with pytest.raises(RuntimeError, match="closed"):
        mailbox.put(1)


def test_a_consumer_that_falls_behind_gets_what_waits_as_one_chunk() -> None:
    async def work(*, merges: bool) -> list[Chunk]:
        stream = AsyncStream(None)
        stream.merges = merges
        for number, text in enumerate(("a", "", "b")):
            stream.channel.send(Chunk(text, (number,), logprobs=None))
        stream.channel.send(Chunk("c", (3, 4), finish_reason="stop"))
        return [chunk async for chunk in stream]

    assert asyncio.run(work(merges=True)) == [Chunk("abc", (0, 1, 2, 3, 4), finish_reason="stop")]
    assert [chunk.text for chunk in asyncio.run(work(merges=False))] == ["a", "", "b", "c"]


def test_merged_chunks_end_before_an_error() -> None:
    async def work() -> list[str]:
        stream = AsyncStream(None)
        stream.merges = True
        stream.channel.send(Chunk("a", (1,)))
        stream.channel.send(Chunk("b", (2,)))
        stream.channel.send(ClosedError("over"))
        found = [(await anext(stream)).text]
        with pytest.raises(ClosedError, match="over"):
            await anext(stream)
        return found

    assert asyncio.run(work()) == ["ab"]
