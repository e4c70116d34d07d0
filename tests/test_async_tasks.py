"""Waiting for tasks that end: a second cancellation is neither lost nor early."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")

from ollama_engine.async_tasks import cancel_and_wait, wait_until_ended
from ollama_engine.server.interleaving import interleaved
from ollama_engine.server.isolation.remote_stream import RemoteStream
from ollama_engine.server.streaming import while_listening
from ollama_engine.store.transfers import SharedTransfers, TransferProgress, in_thread, run_together

Begin = Callable[[], None]
SCOPE: dict[str, Any] = {"app": SimpleNamespace(state=SimpleNamespace())}
"""Of an app that does not end."""


class SlowToEnd:
    """Work that takes time to end once it is cancelled, as an answer does that waits for its step."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.told = asyncio.Event()
        self.may_end = asyncio.Event()
        self.ended = False

    async def work(self, *_: object) -> None:
        try:
            self.begun.set()
            await asyncio.Event().wait()
        finally:
            self.told.set()
            while not self.may_end.is_set():
                try:
                    await self.may_end.wait()
                except asyncio.CancelledError:
                    continue
            self.ended = True

    async def chunks(self) -> AsyncIterator[bytes]:
        await self.work()
        yield b""


async def never(*_: object) -> dict[str, str]:
    await asyncio.Event().wait()
    raise AssertionError


async def follow(slow: SlowToEnd) -> None:
    async for _ in SharedTransfers().follow("key", slow.work):
        pass


async def interleave(slow: SlowToEnd) -> None:
    starts: Any = [slow.chunks, slow.chunks]
    async for _ in interleaved(starts):
        pass


async def read_remotely(slow: SlowToEnd) -> None:
    async for _ in RemoteStream(slow.chunks()):
        pass


CALLERS: dict[str, Callable[[SlowToEnd], Coroutine[Any, Any, Any]]] = {
    "while_listening": lambda slow: while_listening(SCOPE, never, slow.work()),
    "interleaved": interleave,
    "follow": follow,
    "run_together": lambda slow: run_together([slow.work()]),
    "RemoteStream": read_remotely,
}


@pytest.mark.parametrize("caller", CALLERS)
def test_a_second_cancellation_is_raised_once_the_work_has_ended(caller: str) -> None:
    """As a timeout around a request that its client has left; what the work holds is free then."""

    async def main() -> None:
        slow = SlowToEnd()
        after = []

        async def call() -> None:
            try:
                await CALLERS[caller](slow)
            except asyncio.CancelledError:
                after.append(slow.ended)
                await asyncio.sleep(0)  # a lost cancellation comes again here, or never
                raise

        task = asyncio.create_task(call())
        await slow.begun.wait()
        task.cancel()
        await slow.told.wait()
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        slow.may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert after == [True]

    asyncio.run(main())


def test_the_client_leaves_and_then_the_caller_is_cancelled() -> None:
    """The cancellation is what is raised: the error of the client's leaving would hide it."""

    async def main() -> None:
        slow = SlowToEnd()

        async def leaving() -> dict[str, str]:
            await slow.begun.wait()
            return {"type": "http.disconnect"}

        task = asyncio.create_task(while_listening(SCOPE, leaving, slow.work()))
        await slow.told.wait()
        task.cancel()
        await asyncio.sleep(0)
        slow.may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_work_in_a_thread_has_ended_when_its_caller_goes_on() -> None:
    async def main() -> None:
        began, may_end, ended = threading.Event(), threading.Event(), threading.Event()

        def work() -> None:
            began.set()
            may_end.wait(30)
            ended.set()

        task = asyncio.create_task(in_thread(work))
        await asyncio.to_thread(began.wait, 30)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0.01)
        assert not task.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    asyncio.run(main())


@pytest.mark.parametrize("end", [cancel_and_wait, wait_until_ended])
def test_what_tasks_raise_is_dropped(end: Callable[..., Awaitable[None]], caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> TransferProgress:
        raise ZeroDivisionError

    async def main() -> None:
        task = asyncio.create_task(fail())
        await asyncio.sleep(0)
        await end(task)

    asyncio.run(main())
    assert not caplog.records
