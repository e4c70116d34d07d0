"""What the scenes of the lifetime tests share: how to make things, and a table of all scenes by name."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import numpy as np

from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.graph.tensor import Tensor
from tests.support.waiting import join

SCENES: dict[str, Callable[[], None]] = {}


def scene(function: Callable[[], None]) -> Callable[[], None]:
    SCENES[function.__name__] = function
    return function


def new_backend(threads: int = 2, max_nodes: int = 1024) -> Backend:
    return Backend(BackendParams(threads=threads), max_nodes=max_nodes)


def stored(backend: Backend, n: int = 64, rows: int = 4) -> tuple[Storage, Tensor]:
    storage = Storage(backend, 1)
    tensor = storage.add("t", "f32", (n, rows))
    storage.allocate(0)
    tensor.set(np.ones((rows, n), dtype=np.float32))
    return storage, tensor


def refused(*errors: type[BaseException]) -> contextlib.AbstractContextManager[None]:
    class Refused(contextlib.AbstractContextManager[None]):
        def __exit__(self, kind: type[BaseException] | None, *rest: object) -> bool:
            assert kind is not None, f"expected {errors}"
            return issubclass(kind, errors)

    return Refused()


def run_threads(*targets: Callable[[], None]) -> None:
    failures: list[BaseException] = []

    def guard(target: Callable[[], None]) -> None:
        try:
            target()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guard, args=(t,)) for t in targets]
    for thread in threads:
        thread.start()
    join(*threads, seconds=200)  # sanitizers make it slow; less than the parent waits
    if failures:
        raise failures[0]
