"""serve_replicas: the single-machine server in front of engines on Ray, until a signal comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import ray
from ray import serve

from ollama_engine.errors import ConfigError, Option
from ollama_engine.ray.application import ReplicaOptions, engines
from ollama_engine.ray.cluster import cluster
from ollama_engine.ray.replica_model_manager import ReplicaModelManager
from ollama_engine.server.program import listener
from ollama_engine.server.program import serve as serve_http

if TYPE_CHECKING:
    from ollama_engine.server.settings import ServerSettings

__all__ = ["NAME", "replicas", "serve_replicas"]

NAME = "ollama-engine"
"""The application's name in Ray Serve."""


def serve_replicas(
    settings: ServerSettings, options: ReplicaOptions, address: str | None, listening: Callable[[str], None]
) -> None:
    """Serve until a signal comes. `listening` is told the server's URL, once the replicas run.

    This process answers HTTP itself, which takes less than Ray's proxies do. Raises as `replicas`; OSError where the
    port is taken.
    """
    with listener(settings):  # a port that is taken is told before the replicas are started
        pass
    with replicas(settings, options, address) as manager:
        serve_http(settings, listening, manager)


@contextmanager
def replicas(
    settings: ServerSettings, options: ReplicaOptions, address: str | None = None
) -> Iterator[ReplicaModelManager]:  # fmt: skip
    """Engines on Ray, from when they run until the block ends.

    `address`: of a running Ray cluster ("auto", HOST:PORT), of which this machine is a node; None starts one in
    processes of this machine, which end with this. Raises ConfigError where there is no cluster, where it is too small,
    or where it serves an application of this name already.
    """
    # One line for each request in the server's log says what Ray's two for each would.
    logs = {"log_level": "INFO" if settings.debug else "WARNING", "enable_access_log": bool(settings.debug)}
    with cluster(address):
        _refuse_what_does_not_fit(options)
        if address is None:
            serve.start(proxy_location="Disabled", logging_config=logs)
        else:
            _refuse_a_name_that_is_taken()
        try:
            handle = serve.run(engines(settings, options), name=NAME, route_prefix=None, logging_config=logs)
            yield ReplicaModelManager(handle, settings.keep_alive)
        finally:
            if address is None:
                serve.shutdown()
            else:
                serve.delete(NAME)


def _refuse_a_name_that_is_taken() -> None:
    """Raise ConfigError where the cluster serves an application of this name: ours would replace it, and end it."""
    if NAME in serve.status().applications:
        raise ConfigError(
            Option("ray_address"), f": that cluster serves an application {NAME!r} already, by a program that runs, by "
            "one that was killed, or by a config file",
            advice=[f"""end it: python -c "from ray import serve; serve.delete('{NAME}')" where the cluster runs""",
                    "leave the address out, and have a cluster started here"],
        )  # fmt: skip


def _refuse_what_does_not_fit(options: ReplicaOptions) -> None:
    """Raise ConfigError where the replicas that always run, or one, need more than there is: they would wait."""
    there, least = ray.cluster_resources(), max(1, options.min_replicas)
    for name, each in (("CPU", options.cpus), ("GPU", options.gpus)):
        needed = each * least
        if needed > there.get(name, 0):
            raise ConfigError(
                Option("replicas"), f": {least} need {needed:g} {name}s, and the cluster has "
                f"{there.get(name, 0):g}", advice=[f"let there be fewer, or give each fewer {name}s"],
            )  # fmt: skip
