"""`pytest --on-workers`: the tests that are named, with all layers of their models on a worker instead of the CPU.

    pytest --on-workers tests/models/test_contract.py tests/session tests/engine/test_forks.py

Each engine gets a worker of its own, on loopback. Tests of what only the CPU promises fail then, such as those that
compare bits across batches.
"""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.workers import RunningWorker, running_worker

__all__ = ["WorkerPool", "put_engines_on_workers"]


class WorkerPool:
    """Workers, and the backends that use them."""

    def __init__(self) -> None:
        self._ends = contextlib.ExitStack()
        self._folder = Path(self._ends.enter_context(tempfile.TemporaryDirectory(prefix="oe-workers-")))
        self._idle: list[RunningWorker] = []
        self._used: list[tuple[RunningWorker, Any]] = []

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

    def close(self) -> None:
        """End all workers."""
        self._ends.close()


def put_engines_on_workers() -> WorkerPool:
    """Have every model of this process loaded onto a worker. To be called before test modules are imported."""
    import ollama_engine.engine  # noqa: PLC0415 (not needed without the option)
    from ollama_engine.runner.load import loading  # noqa: PLC0415

    pool, load = WorkerPool(), loading.load

    def load_on_worker(source: Any, config: Any, *args: Any, **options: Any) -> Any:
        worker = pool.take()
        try:
            there = replace(config, devices=(worker.address,), gpu_layers=None)
            loaded = load(source, there, *args, **options)
        except BaseException:
            pool.give_back(worker)
            raise
        pool.lend(worker, loaded.backend)
        return loaded

    loading.load = load_on_worker  # type: ignore[assignment]
    ollama_engine.engine.load = load_on_worker  # type: ignore[assignment]
    return pool
