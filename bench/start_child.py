"""The process that `start_stages.py` starts: prints how long each step took up to the first token, as JSON.

    python bench/start_child.py MODEL.gguf THREADS

Imports nothing that the package does not, or its own imports would look cheaper than they are.
"""

from __future__ import annotations

import time

BEGIN = time.monotonic()

import sys  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from contextlib import contextmanager  # noqa: E402
from typing import Any  # noqa: E402

PROMPT = "Once upon a time there was a small house"


class Clock:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - begin

    def time(self, name: str, owner: Any, attribute: str) -> None:
        """From now on, calls of `owner.attribute` are stage `name`."""
        function: Callable[..., Any] = getattr(owner, attribute)

        def call(*args: Any, **kwargs: Any) -> Any:
            with self.stage(name):
                return function(*args, **kwargs)

        setattr(owner, attribute, call)


def time_loading(clock: Clock) -> None:
    from ollama_engine.ml.gguf.gguf_file import GGUFFile  # noqa: PLC0415
    from ollama_engine.ml.weights.weights import Weights  # noqa: PLC0415
    from ollama_engine.runner.execute.executor import Executor  # noqa: PLC0415
    from ollama_engine.runner.load import loading  # noqa: PLC0415

    clock.time("header", GGUFFile, "__init__")
    clock.time("tokenizer", loading, "from_metadata")
    clock.time("backend", loading, "Backend")
    clock.time("map", Weights, "load")
    clock.time("cache", loading, "make_model_cache")
    clock.time("reserve", Executor, "reserve")
    clock.time("repack", Weights, "repack")


def run(model: str, threads: int) -> dict[str, float]:
    """Seconds by stage, and on the clock of the system when the first one began and the last one ended."""
    clock = Clock()
    with clock.stage("numpy"):
        import numpy  # noqa: F401, PLC0415
    with clock.stage("package"):
        from ollama_engine import Engine, SamplingParams  # noqa: PLC0415
    time_loading(clock)
    with clock.stage("engine"):
        engine = Engine(model, threads=threads, parallel=1)
    with clock.stage("token"), engine.stream(PROMPT, SamplingParams(max_tokens=1, temperature=0)) as chunks:
        next(chunks)
    with clock.stage("close"):
        engine.close()
    return {**clock.seconds, "begin": BEGIN, "done": time.monotonic()}


if __name__ == "__main__":
    found = run(sys.argv[1], int(sys.argv[2]))
    import json

    print(json.dumps(found))
