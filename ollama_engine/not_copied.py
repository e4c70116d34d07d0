"""NotCopied: the base of objects that own threads and memory, and so cannot be copied."""

from __future__ import annotations

from typing import NoReturn

from ollama_engine.errors import ConfigError

__all__ = ["NotCopied"]


class NotCopied:
    """`copy.copy`, `copy.deepcopy` and pickle raise ConfigError: a copy would share what it closes."""

    def __reduce__(self) -> NoReturn:
        raise ConfigError(
            f"an object of type {type(self).__name__} cannot be copied or pickled; threads share it, and another "
            "process opens one of its own"
        )
