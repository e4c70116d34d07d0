"""`ollama-engine serve`: the HTTP server."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import ollama_engine
from ollama_engine import demo
from ollama_engine.cli.errors import UsageError
from ollama_engine.cli.log_lines import LineFormatter
from ollama_engine.cli.logs import log_format, log_formatter
from ollama_engine.cli.measure.devices import refuse_unknown
from ollama_engine.cli.paths import existing
from ollama_engine.config import Drafting, EngineConfig
from ollama_engine.ml.device.device_info import system_line
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.models import model_class
from ollama_engine.runner.load.draft_parts import open_draft
from ollama_engine.runner.load.errors import naming
from ollama_engine.runner.load.projector import known_metadata
from ollama_engine.runner.prefix_store.folder_contents import make_prefix_folder
from ollama_engine.server.settings import SETTINGS, ServerSettings, Setting, read_address

__all__ = ["OF_REQUESTS", "add_arguments", "main"]

OF_REQUESTS = {
    "gpu_layers": "num_gpu", "max_tokens": "num_predict",
    **{name: name for name in ("temperature", "top_k", "top_p", "min_p", "seed", "repeat_penalty")},
}  # fmt: skip
"""Options of `run` that each request has for itself, and their names there."""

log = logging.getLogger(__name__)

PACKAGED = {"demo": demo.path, "demo-vision": demo.vision_path}
MISSING = "serve needs packages that are not installed: pip install 'ollama_engine[server]'"
NO_RAY = "--replicas needs packages that are not installed: pip install 'ollama_engine[ray]'"
RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # Ray reports to its makers otherwise
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",  # an answer's chunks come in half the time that Ray's objects take
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",  # a replica's code waits for nothing but its event loop
}
"""Ray's own environment variables, where they are not set; they hold for clusters that are started here."""
FLAGS = {"debug": "debug-level", "devices": "device"}
"""Settings whose flags have other names: --debug shows tracebacks, with every command."""
REPEATED = ("devices",)
"""Settings whose flags may be given several times, as with other commands."""
LOG_LEVELS = (logging.INFO, logging.DEBUG, 5)
"""Log levels for OLLAMA_DEBUG 0, 1 and 2."""
EXAMPLE = """\
listening at {url} (in a browser: a page to chat)
  curl {url}/api/chat -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
  OpenAI's clients: base_url="{url}/v1"; Ollama's and Anthropic's: "{url}"; all routes: {url}/docs"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    parser.add_argument("models_served", metavar="MODEL", nargs="*",
                        help="a GGUF file, served under its name without .gguf. The models of the store, demo and "
                        "demo-vision are served anyway")  # fmt: skip
    group = parser.add_argument_group("server", "Each stands above the environment variable that is named with it.")
    group.add_argument("--host", metavar="HOST[:PORT]",
                       help="where to listen (OLLAMA_HOST, default 127.0.0.1:11434)")  # fmt: skip
    group.add_argument("--port", metavar="N", type=int, help="TCP port; 0 takes a free one")
    for name, setting in SETTINGS.items():
        add_flag(group, name, setting)
    add_replica_flags(parser)


def add_replica_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of a server with several engines."""
    group = parser.add_argument_group(
        "replicas", "Engines in processes of their own, on this machine or on a cluster, by Ray (docs/ray.md)."
    )
    group.add_argument("--replicas", metavar="N|N-M", type=replica_numbers,
                       help="engines, each with a cache of its own; N to M by the length of the queue")  # fmt: skip
    group.add_argument("--replica-cpus", metavar="N", type=int,
                       help="CPUs of each, and threads of its engine (default: its part of this machine)")  # fmt: skip
    group.add_argument("--replica-gpus", metavar="N", type=float, default=0.0,
                       help="GPUs of each, 0.5 for two on one (default 0)")  # fmt: skip
    group.add_argument("--ray-address", metavar="ADDRESS",
                       help="a running Ray cluster: auto, or HOST:PORT (default: one is started)")  # fmt: skip


def replica_numbers(text: str) -> tuple[int, int]:
    """Replicas at least and at most."""
    low, mark, high = text.partition("-")
    try:
        numbers = int(low), int(high if mark else low)
    except ValueError:
        numbers = (0, 0)
    if not 0 <= numbers[0] <= numbers[1] or not numbers[1]:
        raise argparse.ArgumentTypeError(f"expected a number from 1, or two like 1-4, got {text!r}")
    return numbers


def add_flag(group: argparse._ArgumentGroup, name: str, setting: Setting) -> None:
    """Add the flag of a setting: its value is read as that of the variable is."""
    flag = f"--{FLAGS.get(name, name).replace('_', '-')}"
    help_text = f"{setting.help} ({setting.variable})".replace("%", "%%")
    if not setting.metavar:
        group.add_argument(flag, dest=name, action="store_true", default=None, help=help_text)
        return

    def convert(text: str) -> Any:
        try:
            return setting.read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"expected {error}, got {text!r}") from None

    if name in REPEATED:
        group.add_argument(flag, dest=name, metavar=setting.metavar, type=convert, action="extend",
                           help=f"{help_text}; may be repeated")  # fmt: skip
        return
    group.add_argument(flag, dest=name, metavar=setting.metavar, type=convert, help=help_text)


def main(args: argparse.Namespace) -> None:
    settings = settings_of(args)
    log_requests(settings.debug)
    try:
        from ollama_engine.server.program import serve  # noqa: PLC0415 (an extra has what it needs)
    except ModuleNotFoundError as error:
        raise UsageError(f"{MISSING} ({error.name} is missing)") from None

    def announce(url: str) -> None:
        if log_format() == "json":
            log.info("listening at %s", url, extra={"url": url})
            return
        model = settings.files[0][0] if settings.files else "demo"
        print(EXAMPLE.format(url=url, model=model), file=sys.stderr, flush=True)

    if settings.prefix_store not in ("on", "off"):
        make_prefix_folder(settings.prefix_store)  # or say now why not, instead of at the first load
    check_draft_model(settings)
    if args.replicas is None:
        refuse_replica_flags(args)
        if settings.isolation == "none":  # elsewhere, this process loads no driver
            devices = ollama_engine.Engine.devices()
            refuse_unknown(settings.devices, devices)
            log.info("system: %s", system_line(devices), extra={"devices": devices})
        serve(settings, announce)
    else:
        serve_with_ray(args, settings, announce)


def check_draft_model(settings: ServerSettings) -> None:
    """Open the draft model, or say now why not. Raises ConfigError where drafts of one are wished and none is named."""
    config = EngineConfig(draft=cast(Drafting, settings.draft), draft_model=settings.draft_model or None)
    if config.draft != "off":
        with contextlib.ExitStack() as undo:
            open_draft(config, undo)


def refuse_replica_flags(args: argparse.Namespace) -> None:
    """Raise UsageError for flags that mean nothing without --replicas."""
    for name in ("replica_cpus", "replica_gpus", "ray_address"):
        if getattr(args, name):
            raise UsageError(f"--{name.replace('_', '-')} is for replicas: say how many with --replicas")


def serve_with_ray(args: argparse.Namespace, settings: ServerSettings, announce: Callable[[str], None]) -> None:
    """Serve with replicas until a signal comes."""
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        from ollama_engine.ray import ReplicaOptions, program  # noqa: PLC0415 (an extra has what they need)
    except ModuleNotFoundError as error:
        raise UsageError(f"{NO_RAY} ({error.name} is missing)") from None
    low, high = args.replicas
    cpus = args.replica_cpus or (1 if args.ray_address else max(1, (os.cpu_count() or 1) // high))
    replicas = ReplicaOptions(low, high, cpus, args.replica_gpus)
    program.serve_replicas(settings, replicas, args.ray_address, announce)


def log_requests(debug: int) -> None:
    """Have the package's log, and the web server's, say what happens and when."""
    log, web = logging.getLogger("ollama_engine"), logging.getLogger("uvicorn")
    log.setLevel(min(LOG_LEVELS[debug], log.level))
    web.setLevel(logging.INFO if debug else logging.WARNING)
    for handler in log.handlers:
        handler.setFormatter(log_formatter(LineFormatter()))
        web.addHandler(handler)


def settings_of(args: argparse.Namespace) -> ServerSettings:
    """The environment's settings with the flags above them. Raises ConfigError and UsageError."""
    changes = {name: getattr(args, name) for name in SETTINGS if getattr(args, name) is not None}
    for name in REPEATED:
        if name in changes:
            changes[name] = tuple(changes[name])
    if args.host is not None:
        changes["host"], changes["port"] = read_address("host", args.host)
    if args.port is not None:
        if not 0 <= args.port < 1 << 16:
            raise UsageError(f"--port is a number from 0 to 65535, got {args.port}")
        changes["port"] = args.port
    changes["files"] = tuple(map(served_file, args.models_served))
    return ServerSettings.from_environment(os.environ, **changes)


def served_file(model: str) -> tuple[str, Path]:
    """Name and path of a file, or of a packaged model, which lists show where it is named.

    Raises FileNotFoundError, as `GGUFFile` for what is no model, and UnsupportedModelError for one that no engine
    runs: else the first request would be told.
    """
    if model in PACKAGED:
        return model, PACKAGED[model]()
    hint = "; MODEL is a GGUF file. Models of the store are served without being named"
    path = Path(existing(model, hint=hint)).resolve()
    with naming(str(path)), GGUFFile(path) as file:
        model_class(known_metadata(file).architecture)
    return path.stem, path
