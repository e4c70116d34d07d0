"""Asyncio's tasks and threads: waiting for their end though one is cancelled oneself, and not waiting for it at all."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["cancel_and_wait", "in_thread_of_its_own", "running_loop", "wait_until_ended"]

Value = TypeVar("Value")


def running_loop() -> asyncio.AbstractEventLoop:
    """The event loop that runs here. Raises RuntimeError where none does, as under trio, and says what to call then."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "no running event loop: asynchronous methods need asyncio's, in an async function; elsewhere call those "
            "that wait (generate for agenerate, stream for astream), under trio in a thread (trio.to_thread.run_sync)"
        ) from None


async def cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until they have ended; what they give or raise is dropped."""
    for task in tasks:
        task.cancel()
    await wait_until_ended(*tasks)


async def wait_until_ended(*tasks: asyncio.Future[Any]) -> None:
    """Wait until tasks have ended, so that nothing that they hold is in use any more.

    A cancellation of the caller meanwhile is raised at the end: swallowed, it would take a timeout around the caller
    with it.
    """
    cancelled: asyncio.CancelledError | None = None
    while running := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError as error:
            cancelled = error
    for task in tasks:
        if not task.cancelled():
            task.exception()  # or asyncio logs "exception was never retrieved"
    if cancelled is not None:
        raise cancelled


async def in_thread_of_its_own(work: Callable[[], Value], name: str) -> Value:
    """The result of work in a thread for whose end neither the event loop nor the process waits, as it may never come.

    asyncio and Python wait for the threads of executors when they end.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Value] = loop.create_future()

    def finish(set_result: Callable[[Any], None], value: object) -> None:
        if not result.done():
            set_result(value)

    def run() -> None:
        set_result: Callable[[Any], None] = result.set_result
        value: object
        try:
            value = work()
        except BaseException as error:
            set_result, value = result.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the caller has ended with it
            loop.call_soon_threadsafe(finish, set_result, value)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await result
