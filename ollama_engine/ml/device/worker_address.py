"""Addresses of workers: rpc://HOST:PORT, and rpc://HOST:PORT/N for one device of theirs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ollama_engine.errors import ConfigError, Option

__all__ = ["DEFAULT_PORT", "SCHEME", "WorkerAddress", "read_address"]

SCHEME = "rpc://"
DEFAULT_PORT = 50052
"""The port that ggml's own worker program listens at, too."""

_FORM = re.compile(r"rpc://(\[[0-9a-fA-F:.%]+\]|[^/:\[\]\s]+)(?::([0-9]{1,5}))?(?:/([0-9]{1,3}))?/?", re.ASCII)


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """Where a worker listens."""

    host: str
    """A name or a number, IPv6 without brackets."""
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{SCHEME}{host}:{self.port}"


def read_address(text: str) -> tuple[WorkerAddress, int | None]:
    """The worker that a device's name means, and which of its devices; None: all of them. Raises ConfigError."""
    form = _FORM.fullmatch(text)
    port = DEFAULT_PORT if form is None or form[2] is None else int(form[2])
    if form is None or not 1 <= port <= 65535:
        raise ConfigError(
            Option("devices"), f" names a worker as rpc://HOST:PORT, or rpc://HOST:PORT/N for one device; got {text!r}"
        )
    return WorkerAddress(form[1].strip("[]"), port), None if form[3] is None else int(form[3])
