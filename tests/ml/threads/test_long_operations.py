"""On a busy machine all threads compute a prompt, and fewer an answer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ollama_engine.ml import ops
from ollama_engine.ml.device.placement import BackendParams, usable_cpus
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.threads import thread_pools

SHORT, LONG = (64, 64), (1024, 1024)
"""Of both operands: LONG makes 2^30 products of numbers."""


looks: list[int] = []
"""One number for each look at the machine."""


class Busy:
    """A governor on a machine that is always busy."""

    probe = 0
    threads = 1

    def __init__(self, most: int, cpu_use: object) -> None:
        pass

    def begin(self, now: float, waiting: int | None) -> int:
        looks.append(self.threads)
        return self.threads

    def observe(self, now: float, computed: float, waited: float, spare: float | None) -> int:
        return self.threads


def computed(backend: Backend, shape: tuple[int, int]) -> None:
    with Context(backend) as ctx:
        a = ctx.from_floats(np.ones(shape, np.float32))
        y = ops.mul_mat(a, a)
        ctx.forward(y)
        ctx.compute()
        assert y.numpy()[0, 0] == shape[0]


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    monkeypatch.setattr(thread_pools, "ThreadGovernor", Busy)
    looks.clear()
    with Backend(BackendParams(threads=2), max_nodes=64) as made:
        yield made


@pytest.mark.skipif(usable_cpus() < 2, reason="one CPU: there is one thread")
def test_long_operations_take_all_threads(backend: Backend) -> None:
    for shape, threads in ((SHORT, 1), (LONG, 2), (SHORT, 1), (LONG, 2)):
        computed(backend, shape)
        assert backend.threads_in_use == threads, shape


@pytest.mark.skipif(usable_cpus() < 2, reason="one CPU: there is one thread")
def test_the_machine_is_looked_at_behind_a_long_operation_that_came_first(backend: Backend) -> None:
    computed(backend, LONG)
    assert looks == []
    computed(backend, SHORT)
    assert looks == [1]
