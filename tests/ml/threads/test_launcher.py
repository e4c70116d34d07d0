"""Who computes a graph that was launched: a thread in the background, or the one that waits for it."""

from __future__ import annotations

import time

import numpy as np
import pytest

from ollama_engine.errors import ClosedError, ComputeError
from ollama_engine.ml import ops
from ollama_engine.ml.device.placement import BackendParams, usable_cpus
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.graph.tensor import Tensor

SIZE, PRODUCTS = 256, 20


class Chain:
    """Some milliseconds of products, one after the other, with as many threads as there are CPUs."""

    def __init__(self) -> None:
        self.backend = Backend(BackendParams(threads=usable_cpus()), max_nodes=256)
        self.storage = Storage(self.backend, 1)
        table = self.storage.add("table", "f32", (SIZE, SIZE))
        self.storage.allocate(0)
        table.set(np.eye(SIZE, dtype=np.float32))
        self.ctx = Context(self.backend)
        self.x: Tensor = self.ctx.input("f32", (SIZE, SIZE))
        self.y = self.x
        for _ in range(PRODUCTS):
            self.y = ops.mul_mat(table, self.y)
        self.ctx.forward(self.y)
        self.ctx.alloc()

    def launch(self, value: float) -> None:
        self.x.set(np.full((SIZE, SIZE), value, dtype=np.float32))
        self.ctx.launch()

    def share(self, value: float, meanwhile: float = 0.0) -> float:
        """The share of the time of `wait` that its thread computed for."""
        self.launch(value)
        if meanwhile:
            time.sleep(meanwhile)
        began, cpu_began = time.perf_counter(), time.thread_time()
        self.ctx.wait()
        took, computed = time.perf_counter() - began, time.thread_time() - cpu_began
        assert (self.y.numpy() == value).all()
        return computed / took

    def waited_for_at_once(self) -> None:
        for value in range(4):
            self.share(float(value))


@pytest.fixture
def chain() -> Chain:
    return Chain()


def test_who_waits_at_once_computes(chain: Chain) -> None:
    first = chain.share(1.0)
    chain.waited_for_at_once()
    later = max(chain.share(float(value)) for value in range(20))
    assert first < 0.5 < later  # before it is known when it will be waited for, the background computes
    chain.backend.close()


def test_work_meanwhile_goes_on_beside_the_background(chain: Chain) -> None:
    chain.waited_for_at_once()
    chain.share(1.0, 0.2)  # from now on it is known that there is time
    began = time.thread_time()
    chain.x.set(np.zeros((SIZE, SIZE), dtype=np.float32))
    chain.ctx.compute()
    alone = time.thread_time() - began
    chain.launch(2.0)
    time.sleep(0.2)
    began = time.thread_time()
    chain.ctx.wait()
    assert time.thread_time() - began < alone / 2
    assert (chain.y.numpy() == 2.0).all()
    chain.backend.close()


@pytest.mark.parametrize("ending", ["context", "storage", "backend"])
def test_what_nobody_waits_for_is_dropped(chain: Chain, ending: str) -> None:
    chain.waited_for_at_once()
    chain.launch(1.0)
    for attempt in (chain.ctx.alloc, chain.ctx.compute, chain.ctx.launch, chain.y.numpy):
        with pytest.raises(ComputeError):
            attempt()
    {"context": chain.ctx.close, "storage": chain.storage.close, "backend": chain.backend.close}[ending]()
    with pytest.raises((ClosedError, ComputeError)):
        chain.ctx.wait()
    if ending == "context":
        with Context(chain.backend) as other:
            assert (other.from_floats([1.0]).numpy() == 1.0).all()
            chain.backend.check_devices()
    chain.backend.close()
