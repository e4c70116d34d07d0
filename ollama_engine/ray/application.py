"""application: the server and its engines as a Ray Serve application."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.handle import DeploymentHandle

from ollama_engine.errors import ConfigError, Option
from ollama_engine.option_names import meant
from ollama_engine.ray.replica import Replica
from ollama_engine.ray.replica_model_manager import ReplicaModelManager
from ollama_engine.ray.router import PrefixRouter
from ollama_engine.server.app import create_app
from ollama_engine.server.library import PACKAGED
from ollama_engine.server.settings import SETTINGS, ServerSettings

if TYPE_CHECKING:
    from ray.serve import Application
    from starlette.types import ASGIApp

__all__ = ["ReplicaOptions", "application", "build", "engines"]

SERVER_REQUESTS = 10_000
"""Requests that one HTTP server may have; engines refuse those beyond `max_queue` in Ollama's words, Ray would not."""


@dataclass(frozen=True)
class ReplicaOptions:
    """How many replicas there are, and what each takes.

    Attributes:
        min_replicas: engines that always run; 0 lets all go when nobody asks, and the first request waits for one.
        max_replicas: engines at most; more than `min_replicas` has Ray start and stop them by the length of the queue.
        cpus: of each replica; its engine has as many threads.
        gpus: of each replica; a part of one shares a GPU.
        servers: processes that answer HTTP and send requests to the engines.
        target_requests: requests of one replica, computed and waiting, above which another is started; None takes
            `num_parallel` of the settings.
        upscale_seconds: how long there are more before one is started.
        downscale_seconds: how long there are fewer before one is stopped.
    """

    min_replicas: int = 1
    max_replicas: int = 1
    cpus: int = 1
    gpus: float = 0.0
    servers: int = 1
    target_requests: float | None = None
    upscale_seconds: float = 10.0
    downscale_seconds: float = 300.0

    def __post_init__(self) -> None:
        if not 0 <= self.min_replicas <= self.max_replicas or not self.max_replicas:
            raise ConfigError(
                Option("min_replicas"), f" is 0 to max_replicas, and that at least 1, got {self.min_replicas} and "
                f"{self.max_replicas}",
            )  # fmt: skip
        if self.cpus < 1 or self.servers < 1 or self.gpus < 0:
            raise ConfigError(
                Option("cpus"), " and servers are at least 1, gpus at least 0, got "
                f"{self.cpus}, {self.servers} and {self.gpus}",
            )  # fmt: skip


class _Server:
    """The HTTP server of `ollama_engine.server`, whose models are replicas."""

    def __init__(self, settings: ServerSettings, engines: DeploymentHandle) -> None:
        self._settings = settings
        self._engines = engines

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return create_app(self._settings, manager=ReplicaModelManager(self._engines, self._settings.keep_alive))


def application(settings: ServerSettings, options: ReplicaOptions | None = None) -> Application:
    """Servers and engines, for `ray.serve.run` and clusters. Files of `settings` lie at the same paths on all nodes.

    Where it listens is Ray Serve's setting (`http_options`), not that of `settings`.
    """
    server = serve.deployment(
        serve.ingress()(_Server),
        name="server",
        num_replicas=(options or ReplicaOptions()).servers,
        max_ongoing_requests=SERVER_REQUESTS,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=settings.shutdown_timeout,
    )
    found: Application = server.bind(settings, engines(settings, options))
    return found


def engines(settings: ServerSettings, options: ReplicaOptions | None = None) -> Application:
    """The engines alone: `ReplicaModelManager` sends them requests."""
    options = options or ReplicaOptions()
    deployment = serve.deployment(
        Replica,
        name="engines",
        **_scaling(options, settings.num_parallel),
        max_ongoing_requests=settings.num_parallel + settings.max_queue,
        ray_actor_options={"num_cpus": options.cpus, "num_gpus": options.gpus},
        request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),
        graceful_shutdown_timeout_s=settings.shutdown_timeout,
    )
    found: Application = deployment.bind(settings, options.cpus)
    return found


def _scaling(options: ReplicaOptions, parallel: int) -> dict[str, Any]:
    """How many replicas there are, as Ray Serve takes it."""
    if options.min_replicas == options.max_replicas:
        return {"num_replicas": options.min_replicas}
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=options.min_replicas,
            max_replicas=options.max_replicas,
            target_ongoing_requests=options.target_requests or parallel,
            upscale_delay_s=options.upscale_seconds,
            downscale_delay_s=options.downscale_seconds,
        )
    }


def build(arguments: Mapping[str, Any]) -> Application:
    """The application of Ray Serve's config files: `import_path: ollama_engine.ray:build`, and its `args`.

    `models_served` lists GGUF files, and "demo"; other names are those of ReplicaOptions, and of the server's settings,
    written as their environment variables are ("keep_alive": "5m"). `host` other than a loopback address has requests
    under any name of this service answered; where it listens is Ray Serve's setting. Raises ConfigError.
    """
    ours = {option.name for option in fields(ReplicaOptions)}
    given = dict(arguments)
    files = tuple(_served(model) for model in given.pop("models_served", ()))
    host = str(given.pop("host", ServerSettings.host))
    options = ReplicaOptions(**{name: given.pop(name) for name in list(given) if name in ours})
    for name in given:
        if name not in SETTINGS:
            other = meant(name, [*ours, *SETTINGS, "host", "models_served"])
            hint = "" if other is None else f"; did you mean {other}?"
            raise ConfigError(f"{name} is no setting of the application{hint}")
    written = {SETTINGS[name].variable: _text(value) for name, value in given.items()}
    return application(ServerSettings.from_environment(written, files=files, host=host), options)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _served(model: str) -> tuple[str, Path]:
    """Name and path. Raises ConfigError where there is no such file."""
    if model in PACKAGED:
        return model, PACKAGED[model]()
    path = Path(model)
    if not path.is_file():
        raise ConfigError(Option("models_served"), f" are GGUF files that all nodes have, got {model!r}, which is none")
    return path.stem, path
