"""Warnings about a model that wait until its new file can be written, so that a refusal is not lost behind them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from logging import Logger

__all__ = ["warn", "warnings_last"]

_waiting: ContextVar[list[tuple[Logger, str, tuple[object, ...]]] | None] = ContextVar("_waiting", default=None)


def warn(logger: Logger, message: str, *values: object) -> None:
    """Log a warning; within `warnings_last`, at its end."""
    waiting = _waiting.get()
    if waiting is None:
        logger.warning(message, *values)
    else:
        waiting.append((logger, message, values))


@contextmanager
def warnings_last() -> Iterator[None]:
    """Hold this thread's warnings back, and log them at the end; an exception drops them."""
    waiting: list[tuple[Logger, str, tuple[object, ...]]] = []
    token = _waiting.set(waiting)
    try:
        yield
    finally:
        _waiting.reset(token)
    for logger, message, values in waiting:
        logger.warning(message, *values)
