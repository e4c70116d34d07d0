"""What owns threads and memory: it cannot be copied (NotCopied), nor be used in a forked process."""

from __future__ import annotations

import os
from typing import NoReturn

from ollama_engine.errors import ClosedError, ConfigError

__all__ = ["NotCopied", "check_process"]


class NotCopied:
    """`copy.copy`, `copy.deepcopy` and pickle raise ConfigError: a copy would share what it closes."""

    def __reduce__(self) -> NoReturn:
        raise ConfigError(
            f"an object of type {type(self).__name__} cannot be copied or pickled; threads share it, and another "
            "process opens one of its own"
        )


def check_process(pid: int) -> None:
    """Raise ClosedError where this is a fork of the process that opened an Engine.

    It has none of its threads; a lock that one of them held then stays taken for ever.
    """
    if pid != os.getpid():
        raise ClosedError("this Engine was opened before the process forked; open one in the child")
