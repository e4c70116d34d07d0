"""`pytest --on-workers`: the tests that are named, with their models on workers instead of the CPU.

    pytest --on-workers tests/models/test_contract.py tests/session tests/engine/test_forks.py
    pytest --on-workers --placement two tests/engine

Each engine that names no device gets workers of its own, on loopback. Weights of the demo models and caches that are
not asked for otherwise are of float32 there: then answers equal those of the CPU but for the last bits, and a test that
compares answers finds what is wrong, and not how activations are rounded (docs/devices.md, *What differs*).

Tests of what only the CPU promises, such as equal bits or how much memory it takes, are marked `cpu_only` and left out,
or ask `suite.on_workers`.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from ollama_engine import demo
from tests.support.workers import RunningWorker, running_worker

__all__ = ["PLACEMENTS", "WorkerPool", "put_engines_on_workers"]

PLACEMENTS: dict[str, dict[str, Any]] = {
    "all": {"gpu_layers": None},
    "some": {"gpu_layers": 2},
    "output": {"gpu_layers": 1},
    "two": {"gpu_layers": None, "tensor_split": (3, 1)},
}
"""Name -> options: all layers, the last one and the output, the output alone, and all on two devices."""


class WorkerPool:
    """Workers, the backends that use them, and copies of the demo models with weights of float32."""

    def __init__(self) -> None:
        self._ends = contextlib.ExitStack()
        self._folder = Path(self._ends.enter_context(tempfile.TemporaryDirectory(prefix="oe-workers-")))
        self._idle: list[RunningWorker] = []
        self._used: list[tuple[RunningWorker, Any]] = []
        self._copies: dict[str, str] = {}

    def take(self) -> RunningWorker:
        """A worker that no open backend uses."""
        for entry in [entry for entry in self._used if entry[1].closed]:
            self._used.remove(entry)
            self._idle.append(entry[0])
        while self._idle:
            worker = self._idle.pop()
            if worker.process.poll() is None:
                return worker
        return self._ends.enter_context(running_worker(self._folder))

    def lend(self, worker: RunningWorker, backend: Any) -> None:
        """Keep the worker for this backend until that is closed."""
        self._used.append((worker, backend))

    def give_back(self, worker: RunningWorker) -> None:
        self._idle.append(worker)

    def float_copy(self, source: Any) -> Any:
        """The path of a copy with weights of float32, for a demo model's; any other source itself."""
        if not isinstance(source, str | os.PathLike) or Path(source) not in (demo.path(), demo.vision_path()):
            return source
        name = Path(source).name
        if name not in self._copies:
            from tests.support.float_copy import write_float_copy  # noqa: PLC0415 (not needed by all)

            self._copies[name] = str(self._folder / name)
            write_float_copy(source, self._copies[name])
        return self._copies[name]

    def close(self) -> None:
        """End all workers."""
        self._ends.close()


def put_engines_on_workers(placement: str) -> WorkerPool:
    """Have models be loaded onto workers by one of `PLACEMENTS`. To be called before test modules are imported."""
    import ollama_engine.engine  # noqa: PLC0415 (not needed without the option)
    from ollama_engine.runner.load import loading  # noqa: PLC0415

    pool, load = WorkerPool(), loading.load

    def load_on_workers(source: Any, config: Any, *args: Any, **options: Any) -> Any:
        if config.devices or config.gpu_layers is not None or config.tensor_split is not None:
            return load(source, config, *args, **options)
        workers = [pool.take() for _ in range(2 if placement == "two" else 1)]
        cache = "f32" if config.kv_cache_type == "f16" else config.kv_cache_type
        try:
            named = tuple(worker.address for worker in workers)
            there = replace(config, devices=named, kv_cache_type=cache, **PLACEMENTS[placement])
            loaded = load(pool.float_copy(source), there, *args, **options)
        except BaseException:
            for worker in workers:
                pool.give_back(worker)
            raise
        for worker in workers:
            pool.lend(worker, loaded.backend)
        return loaded

    loading.load = load_on_workers  # type: ignore[assignment]
    ollama_engine.engine.load = load_on_workers  # type: ignore[assignment]
    return pool
