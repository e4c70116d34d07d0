"""Computations of several backends take turns at the CPUs."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from ollama_engine.ml import ops
from ollama_engine.ml.device.placement import BackendParams, usable_cpus
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.threads import thread_pools
from tests.support.suite import scaled
from tests.support.waiting import status_of

SIZE, PRODUCTS = 512, scaled(60, quick=20)


class Unmoved:
    """A governor that never lowers the number of threads."""

    probe = 0

    def __init__(self, most: int, cpu_use: object) -> None:
        self._most = self.threads = most

    def begin(self, now: float, waiting: int | None) -> int:
        return self._most

    def observe(self, now: float, computed: float, waited: float, spare: float | None) -> int:
        return self._most


@pytest.fixture(autouse=True)
def all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend with fewer threads, on a busy machine, finds room beside another one and does not wait."""
    monkeypatch.setattr(thread_pools, "ThreadGovernor", Unmoved)


@contextmanager
def product(threads: int, products: int) -> Iterator[Context]:
    """A graph of some products, one after the other, ready to compute."""
    with Backend(BackendParams(threads=threads), max_nodes=256) as backend, Context(backend) as ctx:
        a = ctx.from_floats(np.eye(SIZE, dtype=np.float32))
        y = a
        for _ in range(products):
            y = ops.mul_mat(a, y)
        ctx.forward(y)
        ctx.compute()
        yield ctx


def seconds(ctx: Context) -> float:
    start = time.perf_counter()
    ctx.compute()
    return time.perf_counter() - start


@pytest.mark.timing("two computations of some milliseconds, begun after each other")
def test_a_computation_waits_for_those_before_it() -> None:
    with product(usable_cpus(), PRODUCTS) as long, product(usable_cpus(), 1) as short:
        alone = min(seconds(long) for _ in range(3))
        for _ in range(5):  # this thread may sleep for longer than it meant to
            long.launch()
            time.sleep(alone / 4)
            waited = seconds(short)
            long.wait()
            if waited > alone / 4:
                return
        raise AssertionError("it ran beside a computation that takes all CPUs")


@pytest.mark.timing("two computations of some milliseconds, for which two CPUs are free")
@pytest.mark.skipif(usable_cpus() < 2, reason="one CPU: nothing fits beside a computation")
def test_what_fits_runs_at_the_same_time() -> None:
    with product(1, PRODUCTS) as long, product(1, 1) as short:
        alone = min(seconds(long) for _ in range(3))
        for _ in range(5):  # the machine may be busy with something else
            long.launch()
            time.sleep(alone / 10)
            quick = seconds(short) < alone / 2
            long.wait()
            if quick:
                return
        raise AssertionError("one thread waited for one thread")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_does_not_wait_for_its_parents_computations() -> None:
    with product(usable_cpus(), PRODUCTS) as long:
        long.launch()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python dislikes forks where there are threads
            child = os.fork()
        if child == 0:
            status = 1
            try:
                signal.alarm(20)
                with product(usable_cpus(), 1) as ctx:
                    ctx.compute()
                status = 0
            finally:  # never on into pytest
                os._exit(status)
        long.wait()
        assert status_of(child) == 0
