"""cluster: a Ray cluster of this machine's processes, or one that runs already."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Any

import ray

from ollama_engine.errors import ConfigError, Option

__all__ = ["cluster"]

log = logging.getLogger(__name__)

STORE_BYTES = 100 << 20
"""Ray's object store, where a cluster is started here: requests and answers are smaller than what goes through it."""

CONNECT_SECONDS = 5.0

SILENT_SECONDS = 15.0
"""After which it is told that a cluster does not answer; Ray itself goes on trying for minutes."""

AUTO = "auto"
OPTION = Option("ray_address")
FORM = re.compile(r"(?:ray://)?(?P<host>\[[0-9a-fA-F:.%]+\]|[^/:\[\]\s]+):(?P<port>[0-9]{1,5})", re.ASCII)


@contextmanager
def cluster(address: str | None) -> Iterator[None]:
    """Connect this process to Ray until the block ends.

    `address`: "auto", HOST:PORT or ray://HOST:PORT of a cluster that runs; None starts one in processes of this
    machine, which end with the block. Raises ConfigError where there is none.
    """
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": log.isEnabledFor(logging.DEBUG)}
    if address is None:
        ray.init(include_dashboard=False, object_store_memory=STORE_BYTES, address="local", **quiet)
    else:
        _join(address, quiet)
    try:
        yield
    finally:
        ray.shutdown()


def _join(address: str, quiet: dict[str, Any]) -> None:
    if address != AUTO:
        _refuse_where_nothing_listens(address)
    silent = Timer(SILENT_SECONDS, log.warning, (
        "what listens at %s does not answer as a Ray cluster does; Ray tries for some minutes. A cluster takes programs "
        "at HOST:6379, and at ray://HOST:10001, unless it was started with other ports (8265 is its dashboard)", address,
    ))  # fmt: skip
    silent.daemon = True
    silent.start()
    try:
        ray.init(address=address, **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            OPTION, f": there is no Ray cluster at {address!r}: {error}",
            advice=["start one there (ray start --head)", "have one started here: leave the address out"],
        ) from error  # fmt: skip
    finally:
        silent.cancel()


def _refuse_where_nothing_listens(address: str) -> None:
    """Raise ConfigError at once: Ray itself tries an address for minutes, and then ends the process."""
    found = FORM.fullmatch(address)
    if found is None or not 1 <= int(found["port"]) <= 65535:
        raise ConfigError(OPTION, f" is auto, HOST:PORT or ray://HOST:PORT, got {address!r}")
    try:
        socket.create_connection((found["host"].strip("[]"), int(found["port"])), CONNECT_SECONDS).close()
    except (OSError, UnicodeError) as error:  # a name may be none that can be asked for
        why = "no answer" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            OPTION, f": no Ray cluster answers at {address}: {why}",
            advice=["start one there (ray start --head)", "have one started here: leave the address out"],
        ) from None  # fmt: skip
