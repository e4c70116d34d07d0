"""How the program ends: exit codes, what was wrong with a call of it, and errors as one readable line."""

from __future__ import annotations

from ollama_engine.errors import EngineError

__all__ = ["EXIT_ERROR", "EXIT_INTERRUPTED", "EXIT_OK", "EXIT_USAGE", "UsageError", "describe"]

EXIT_OK = 0
EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""


class UsageError(Exception):
    """Options or environment variables that make no sense; says what was expected and what came."""


def describe(error: BaseException) -> str:
    """What an error says, for people who see no traceback."""
    text = str(error).strip()
    if isinstance(error, UsageError | EngineError):
        return text or type(error).__name__
    if isinstance(error, OSError):
        if error.strerror and error.filename is not None:
            return f"{error.filename}: {error.strerror}"
        return error.strerror or text or type(error).__name__
    if isinstance(error, MemoryError):
        return f"out of memory{': ' if text else ''}{text}"
    return f"this should not happen, please report it with the output of --debug: {type(error).__name__}: {text}"
