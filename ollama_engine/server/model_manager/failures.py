"""Errors of loads that fail, an object for each request that waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ollama_engine.errors import EngineError, LoadError

if TYPE_CHECKING:
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["load_error", "stalled_error"]


def load_error(stored: StoredModel, cause: Exception) -> LoadError:
    """The error of one waiting request. Its status is the cause's, for what is wrong may be the request's options."""
    said = cause.message() if isinstance(cause, EngineError) else str(cause) or type(cause).__name__
    error = LoadError(f"model '{stored.name}' could not be loaded: {said}")
    error.__cause__ = cause
    if isinstance(cause, EngineError):
        error.http_status = cause.http_status
    elif isinstance(cause, FileNotFoundError):  # another client has deleted it since it was found
        error.http_status = 404
    return error


def stalled_error(seconds: float) -> LoadError:
    """The cause where a load stands still."""
    return LoadError(f"it made no progress for {seconds:g} s")
