"""Ends of asyncio's tasks: who waits for one keeps waiting when it is cancelled itself, and is cancelled afterwards."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["cancel_and_wait", "wait_until_ended"]


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
            task.exception()  # or asyncio logs that nobody has seen it
    if cancelled is not None:
        raise cancelled
