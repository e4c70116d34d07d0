"""serve_replicas: the application on a Ray cluster, or on one of this machine, until a signal comes."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import ray
from ray import serve

from ollama_engine.errors import ConfigError, Option
from ollama_engine.ray.application import ReplicaOptions, application
from ollama_engine.server.program import listener, url_of
from ollama_engine.server.settings import ServerSettings

__all__ = ["NAME", "serve_replicas", "serving"]

log = logging.getLogger(__name__)

NAME = "ollama-engine"
"""Of the application in Ray Serve."""

STORE_BYTES = 100 << 20
"""Ray's object store on a machine of its own: requests and answers are smaller than what goes through it."""


def serve_replicas(
    settings: ServerSettings, options: ReplicaOptions, address: str | None, listening: Callable[[str], None]
) -> None:
    """Serve until a signal comes. `listening` is told the server's URL, once the replicas run.

    `address`: of a running Ray cluster ("auto", "ray://HOST:PORT"); None starts one in processes of this machine, which
    end with this. Raises OSError where the port is taken, ConfigError where the cluster is too small.
    """
    told = threading.Event()
    before = {sig: signal.signal(sig, lambda *_: told.set()) for sig in (signal.SIGINT, signal.SIGTERM)}
    try:
        with serving(settings, options, address) as url:
            listening(url)
            told.wait()
            log.info("stopping; running answers have %s s", settings.shutdown_timeout)
    finally:
        for sig, handler in before.items():
            signal.signal(sig, handler)


@contextmanager
def serving(settings: ServerSettings, options: ReplicaOptions, address: str | None = None) -> Iterator[str]:
    """The application, from when its replicas run until the block ends; gives its URL."""
    with listener(settings) as found:  # says that a port is taken, or finds a free one
        settings = replace(settings, port=found.getsockname()[1])
        url = url_of(found)
    with _cluster(address, options):
        _refuse_what_does_not_fit(options)
        serve.start(
            proxy_location="HeadOnly" if address is None else "EveryNode",
            http_options={"host": settings.host, "port": settings.port},
        )
        try:
            serve.run(application(settings, options), name=NAME, route_prefix="/")
            yield url
        finally:
            if address is None:
                serve.shutdown()
            else:
                serve.delete(NAME)


@contextmanager
def _cluster(address: str | None, options: ReplicaOptions) -> Iterator[None]:
    quiet: dict[str, Any] = {"logging_level": logging.WARNING, "log_to_driver": log.isEnabledFor(logging.INFO)}
    if address is None:
        ray.init(include_dashboard=False, object_store_memory=STORE_BYTES, address="local", **quiet)
    else:
        ray.init(address=address, **quiet)
    try:
        yield
    finally:
        ray.shutdown()


def _refuse_what_does_not_fit(options: ReplicaOptions) -> None:
    """Raise ConfigError where the replicas that always run need more than the cluster has: they would wait for ever."""
    there = ray.cluster_resources()
    for name, each in (("CPU", options.cpus), ("GPU", options.gpus)):
        needed = each * options.min_replicas
        if needed > there.get(name, 0):
            raise ConfigError(
                Option("replicas"), f": {options.min_replicas} need {needed:g} {name}s, and the cluster has "
                f"{there.get(name, 0):g}", advice=[f"let there be fewer, or give each fewer {name}s"],
            )  # fmt: skip
