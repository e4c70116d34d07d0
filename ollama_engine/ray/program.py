"""serve_replicas: the single-machine server in front of engines on Ray, until a signal comes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import ray
from ray import serve

from ollama_engine.errors import ConfigError, Option
from ollama_engine.ray.application import ReplicaOptions, engines
from ollama_engine.ray.replica_scheduler import ReplicaScheduler
from ollama_engine.server.program import listener
from ollama_engine.server.program import serve as serve_http

if TYPE_CHECKING:
    from ollama_engine.server.settings import ServerSettings

__all__ = ["NAME", "replicas", "serve_replicas"]

log = logging.getLogger(__name__)

NAME = "ollama-engine"
"""Of the application in Ray Serve."""

STORE_BYTES = 100 << 20
"""Ray's object store, where a cluster is started here: requests and answers are smaller than what goes through it."""


def serve_replicas(
    settings: ServerSettings, options: ReplicaOptions, address: str | None, listening: Callable[[str], None]
) -> None:
    """Serve until a signal comes. `listening` is told the server's URL, once the replicas run.

    This process answers HTTP itself, which takes less than Ray's proxies do. Raises as `replicas`; OSError where the
    port is taken.
    """
    with listener(settings):  # a port that is taken is told before the replicas are started
        pass
    with replicas(settings, options, address) as scheduler:
        serve_http(settings, listening, scheduler)


@contextmanager
def replicas(
    settings: ServerSettings, options: ReplicaOptions, address: str | None = None
) -> Iterator[ReplicaScheduler]:  # fmt: skip
    """Engines on Ray, from when they run until the block ends.

    `address`: of a running Ray cluster ("auto", "ray://HOST:PORT"); None starts one in processes of this machine, which
    end with this. Raises ConfigError where the cluster is too small, ConnectionError where there is none.
    """
    # One line for each request in the server's log says what Ray's two for each would.
    logs = {"log_level": "INFO" if settings.debug else "WARNING", "enable_access_log": bool(settings.debug)}
    with _cluster(address):
        _refuse_what_does_not_fit(options)
        if address is None:
            serve.start(proxy_location="Disabled", logging_config=logs)
        try:
            handle = serve.run(engines(settings, options), name=NAME, route_prefix=None, logging_config=logs)
            yield ReplicaScheduler(handle, settings.keep_alive)
        finally:
            if address is None:
                serve.shutdown()
            else:
                serve.delete(NAME)


@contextmanager
def _cluster(address: str | None) -> Iterator[None]:
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": log.isEnabledFor(logging.DEBUG)}
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
