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
"""If the cluster has not answered after this time, a warning says so. Ray goes on trying for minutes."""

SILENT = """\
what listens at %s does not answer as a Ray cluster does; Ray tries for some minutes. A cluster's port is 6379, unless \
it was started with another (8265 is its dashboard). Where it wants a token, set RAY_AUTH_MODE=token and \
RAY_AUTH_TOKEN_PATH\
"""

AUTO = "auto"
OPTION = Option("ray_address")
CLIENT = "ray://"
FORM = re.compile(r"(?P<host>\[[0-9a-fA-F:.%]+\]|[^/:\[\]\s]+):(?P<port>[0-9]{1,5})", re.ASCII)


@contextmanager
def cluster(address: str | None) -> Iterator[None]:
    """Connect this process to Ray until the block ends.

    `address`: "auto" or HOST:PORT of a cluster that runs, and that this machine is a node of; None starts one in
    processes of this machine, which end with the block. Raises ConfigError where there is none.
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
    silent = Timer(SILENT_SECONDS, log.warning, (SILENT, address))
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
    if address.startswith(CLIENT):
        raise ConfigError(
            OPTION, f" {address!r} is for Ray's client, through which no answer can be streamed",
            advice=["run this on a node of the cluster, with the address auto"],
        )  # fmt: skip
    match = FORM.fullmatch(address)
    if match is None or not 1 <= int(match["port"]) <= 65535:
        raise ConfigError(OPTION, f" is auto or HOST:PORT, got {address!r}")
    try:
        socket.create_connection((match["host"].strip("[]"), int(match["port"])), CONNECT_SECONDS).close()
    except (OSError, UnicodeError) as error:  # a name may be none that can be asked for
        why = "no answer" if isinstance(error, TimeoutError) else getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            OPTION, f": no Ray cluster answers at {address}: {why}",
            advice=["start one there (ray start --head)", "have one started here: leave the address out"],
        ) from None  # fmt: skip
