"""Exit codes, and errors as one readable line that spells options as they are typed.

Wrong usage is an error that the user can mend on the command line: a UsageError, or an error about the value of an
option of this command. Every other error, such as a file that cannot be read, is a failure.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable

from ollama_engine.errors import EngineError, ModelNotFoundError, Option, short_of_memory

__all__ = ["EXIT_ERROR", "EXIT_INTERRUPTED", "EXIT_OK", "EXIT_USAGE", "Flags", "InputError", "UsageError", "describe",
           "exit_code"]  # fmt: skip

EXIT_OK = 0
EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""


NAMES = "; ollama-engine list shows the models of the store"
"""What to do about a model that the store does not have."""


class UsageError(Exception):
    """Invalid options or environment variables. The message says what was expected and what came."""


class InputError(Exception):
    """Unusable standard input or text file. The message says what was expected and what came."""


class Flags:
    """The flags of one command: maps an `errors.Option` to its flag by the name of the argument."""

    def __init__(self, actions: Iterable[argparse.Action] = ()) -> None:
        self._actions = tuple(actions)

    def __contains__(self, name: str | None) -> bool:
        return any(action.dest == name for action in self._actions)

    def __call__(self, option: Option) -> str | None:
        """The flag, such as `--num-ctx` or, with a value, `--on-overflow truncate`; None where the command has none."""
        return next((typed for action in self._actions if (typed := _typed(action, option)) is not None), None)


def _typed(action: argparse.Action, option: Option) -> str | None:
    if action.dest != option.name:
        return None
    flag = max(action.option_strings, key=len, default=str(action.metavar or action.dest))
    if option.value is None or action.const == option.value:
        return flag
    value = str(option.value).lower() if isinstance(option.value, bool) else option.value
    return f"{flag} {value}" if action.nargs != 0 else None


def describe(error: BaseException, write: Callable[[Option], str | None] = str) -> str:
    """The message of an error for users, who see no traceback. `write` spells an option."""
    text = str(error).strip()
    if isinstance(error, ImportError):
        error = short_of_memory(error) or error
    if isinstance(error, EngineError):
        missing = isinstance(error, ModelNotFoundError) and text.endswith("not found")
        return (error.message(write).strip() or type(error).__name__) + (NAMES if missing else "")
    if isinstance(error, UsageError | InputError):
        return text or type(error).__name__
    if isinstance(error, OSError):
        if error.strerror and error.filename is not None:
            return f"{error.filename}: {error.strerror}"
        return error.strerror or text or type(error).__name__
    if isinstance(error, MemoryError):
        return f"out of memory{': ' if text else ''}{text}"
    return f"this should not happen, please report it with the output of --debug: {type(error).__name__}: {text}"


def exit_code(error: BaseException, flags: Flags) -> int:
    """2, as argparse, where the user can mend the command line; 1 for every other failure."""
    wrong_value = isinstance(error, EngineError) and error.option in flags
    return EXIT_USAGE if wrong_value or isinstance(error, UsageError) else EXIT_ERROR
