"""Scenes in which the system gives less, or forks, and graphs that are larger than ggml plans for."""

from __future__ import annotations

import gc
import mmap
import os
import resource
import threading
from pathlib import Path

import numpy as np

from ollama_engine.errors import ClosedError, EngineError, NoMemoryError, ShapeError
from ollama_engine.ml import ops
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.threads.threads import check_threads
from tests.ml.graph.scenes import new_backend, refused, run_threads, scene, stored
from tests.support.waiting import status_of


@scene
def forked_child() -> None:
    backend = new_backend()
    storage, table = stored(backend)
    ctx = Context(backend)
    y = ops.sqr(ctx.input("f32", (4,)))
    ctx.forward(y)
    ctx.alloc()
    child = os.fork()
    if child == 0:
        for attempt in (ctx.compute, ctx.alloc, ctx.measure, lambda: table.set(np.zeros((4, 64), np.float32)),
                        lambda: Context(backend), lambda: Storage(backend, 1), backend.graph_bytes):  # fmt: skip
            with refused(ClosedError):
                attempt()
        with new_backend() as mine, Context(mine) as own:
            z = ops.sqr(own.from_floats([3.0]))
            own.forward(z)
            own.compute()
            assert z.numpy()[0] == 9
        storage.close()
        ctx.close()
        backend.close()
        del ctx, y, storage, table, backend
        gc.collect()
        os._exit(0)
    assert status_of(child) == 0
    ctx.alloc()
    backend.close()


@scene
def threads_are_not_granted() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))  # 512 stacks of 8 MiB do not fit
    with refused(NoMemoryError):
        check_threads(512)
    with new_backend(threads=512) as backend:  # cut to the CPUs there are
        assert backend.threads == len(os.sched_getaffinity(0))


@scene
def address_space_is_short() -> None:
    backend = new_backend(threads=1, max_nodes=65536)
    limit = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * 4096 + (64 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with refused(NoMemoryError):
        Storage(backend, 1 << 20)
    with refused(NoMemoryError):
        new_backend(threads=1, max_nodes=65536)
    with Context(backend, max_nodes=64) as ctx:
        with refused(NoMemoryError):
            ctx.zeros("f32", (1 << 26,))
        big = ctx.input("f32", (1 << 26,))
        ctx.forward(ops.sqr(big))
        with refused(NoMemoryError):
            ctx.alloc()
        with refused(NoMemoryError):
            ctx.reserve()
    with Context(backend, max_nodes=64) as ctx:  # a graph of as many nodes must not run in memory that never came
        x = ctx.input("f32", (8,))
        y = ops.sqr(x)
        ctx.forward(y)
        ctx.alloc()
        x.set(np.full(8, 3, dtype=np.float32))
        ctx.compute()
        assert (y.numpy() == 9).all()


@scene
def mapped_memory_stays() -> None:
    backend = new_backend()
    memory = mmap.mmap(-1, 1 << 16)
    storage = Storage(backend, 1)
    tensor = storage.add("t", "f32", (64,))
    storage.map(memory, {"t": 4096})
    with refused(BufferError):
        memory.close()
    with Context(backend) as ctx:
        y = ops.sqr(ops.view(tensor, (64,), ctx=ctx))
        ctx.forward(y)
        del memory
        gc.collect()
        ctx.compute()
        assert (y.numpy() == 0).all()
    storage.close()


@scene
def deep_graph_in_a_small_thread() -> None:
    threading.stack_size(256 * 1024)
    with new_backend(threads=1, max_nodes=60000) as backend:

        def work() -> None:
            with Context(backend) as ctx:
                x = ctx.input("f32", (4,))
                y = x
                for _ in range(50000):
                    y = y + x
                ctx.forward(y)
                ctx.alloc()
                x.set(np.ones(4, dtype=np.float32))
                ctx.compute()
                assert y.numpy()[0] == 50001

        run_threads(work)


@scene
def many_results_at_once() -> None:
    """ggml's planner has 256 places for gaps in its memory and ends the process for one more."""
    with new_backend(threads=1, max_nodes=4096) as backend, Context(backend) as ctx:
        x = ctx.input("f32", (64,))
        kept = [ops.scale(x, i) for i in range(700)]
        for i in range(0, 700, 2):
            ctx.expand(ops.sum_rows(kept[i]))
        for i in range(1, 700, 2):
            ctx.expand(ops.sum_rows(kept[i]))
        for t in kept:
            ctx.expand(ops.mean(t))
        for attempt in (ctx.alloc, ctx.measure, ctx.reserve, ctx.compute):
            with refused(EngineError):
                attempt()


@scene
def measuring_does_not_take_memory() -> None:
    with new_backend() as backend:
        for sizes in ((64, 4096), (1 << 16, 4), (4, 1 << 18)):
            contexts = [Context(backend) for _ in sizes]
            pairs = []
            for ctx, n in zip(contexts, sizes, strict=True):
                x = ctx.input("f32", (n,))
                y = ops.sqr(ops.scale(x, 2))
                ctx.forward(y)
                pairs.append((ctx, x, y, n))
            for ctx, x, y, n in (*pairs, *pairs):
                pairs[0][0].measure()
                ctx.alloc()
                x.set(np.full(n, 3, dtype=np.float32))
                ctx.compute()
                assert (y.numpy() == 36).all()
                pairs[1][0].measure()
                (pairs[0][0] if ctx is pairs[1][0] else pairs[1][0]).alloc()
                with refused(ShapeError):
                    y.numpy()


@scene
def not_a_number_sorted() -> None:
    """std::sort runs beyond its range where the order has no meaning."""
    with new_backend(threads=1) as backend, Context(backend) as ctx:
        x = ctx.input("f32", (4096, 16))
        up, down, best = ops.argsort(x), ops.argsort(x, True), ops.cont(ops.top_k(x, 40))
        ctx.forward(up, down, best)
        rng = np.random.default_rng(1)
        for _ in range(30):
            ctx.alloc()
            values = rng.normal(0, 1, (16, 4096)).astype(np.float32)
            values[rng.random(values.shape) < rng.random()] = np.nan
            x.set(values)
            ctx.compute()
            for places in (up, down):
                assert (np.sort(places.numpy(), axis=1) == np.arange(4096)).all()
