"""Scenes with several threads at work on the same things."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import random
import threading
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ollama_engine.errors import ClosedError, ComputeError, EngineError, ShapeError
from ollama_engine.ml import ops
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.graph.tensor import Tensor
from tests.ml.graph.scenes import new_backend, refused, run_threads, scene, stored


@scene
def threads_share_one_context() -> None:
    """Building, allocating, setting, computing, reading and closing one graph from four threads at once."""
    for turn in range(40):
        _crowd(new_backend(), close_backend=turn % 2 == 0)


def _crowd(backend: Backend, *, close_backend: bool) -> None:
    ctx = Context(backend)
    x = ctx.input("f32", (32, 8))
    y = [ops.rms_norm(x, 1e-5)]
    ctx.forward(y[0])
    actions: list[Callable[[], object]] = [
        ctx.alloc,
        ctx.compute,
        ctx.measure,
        ctx.reserve,
        y[0].numpy,
        lambda: _look(y[0]),
        lambda: x.set(np.ones((8, 32), np.float32)),
        lambda: y.append(y[-1] + ctx.from_floats(np.ones(32))),
        lambda: ctx.forward(y[-1]),
        lambda: ctx.zeros("f32", (1 << 16,)),
        lambda: ops.get_rows(x, ctx.from_ints([1, 2])),
    ]

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(40):
            with contextlib.suppress(EngineError):
                rng.choice(actions)()

    def close() -> None:
        with contextlib.suppress(EngineError):
            ctx.compute()
        (backend if close_backend else ctx).close()

    run_threads(lambda: work(1), lambda: work(2), lambda: work(3), close)
    backend.close()


def _look(tensor: Tensor) -> None:
    with tensor.mapped() as array:
        before = array.copy()
        time.sleep(0.0001)
        assert np.array_equal(array, before, equal_nan=True)


@scene
def large_values_travel_while_owners_close() -> None:
    """Copies of megabytes release the GIL; whoever closes meanwhile has to wait."""
    values = np.arange(1 << 20, dtype=np.float32)
    for turn in range(20):
        backend = new_backend(threads=1)
        storage, table = stored(backend, 1 << 20, 1)
        ctx = Context(backend)
        constant = ctx.from_floats(values)

        owners = (ctx, storage, backend)
        run_threads(
            functools.partial(_travel, constant, values),
            functools.partial(_travel, table, values[None]),
            functools.partial(_close_soon, owners[turn % 3], backend),
        )


def _travel(tensor: Tensor, values: NDArray[np.float32]) -> None:
    out = np.empty_like(values)
    with contextlib.suppress(ClosedError):
        while True:
            tensor.set(values)
            tensor.read_into(out)
            assert np.array_equal(out, values)


def _close_soon(*owners: Context | Storage | Backend) -> None:
    time.sleep(0.003)
    for owner in owners:
        owner.close()


@scene
def threads_share_one_backend() -> None:
    """Each with its own graphs over one storage, which is closed in the middle."""
    backend = new_backend()
    storage, table = stored(backend, 64, 16)

    def work() -> None:
        for _ in range(150):
            with contextlib.suppress(EngineError), Context(backend, max_nodes=64) as ctx:
                index = ctx.input("i32", (4,))
                out = ops.sqr(ops.get_rows(table, index))
                ctx.forward(out)
                ctx.alloc()
                index.set(np.array([0, 5, 15, 3], dtype=np.int32))
                ctx.compute()
                assert (out.numpy() == 1).all()

    def write() -> None:
        with contextlib.suppress(EngineError):
            for _ in range(300):
                table.set(np.ones((16, 64), dtype=np.float32))
        storage.close()

    run_threads(work, work, write)


@scene
def row_numbers_change_while_computing() -> None:
    """Between the check of row numbers and ggml's reading of them nothing may be written."""
    backend = new_backend()
    storage = Storage(backend, 1)
    index = storage.add("i", "i32", (512,))
    storage.allocate(0)
    with Context(backend) as ctx:
        out = ctx.zeros("f32", (256, 8))
        rows = ops.get_rows(out, ops.view(index, (512,), ctx=ctx))
        ctx.forward(rows)
        stop = threading.Event()

        def write() -> None:
            while not stop.is_set():
                index.set(np.full(512, 1 << 20, dtype=np.int32))
                index.set(np.zeros(512, dtype=np.int32))

        def work() -> None:
            for _ in range(300):
                with contextlib.suppress(ShapeError):
                    ctx.compute()
            stop.set()

        run_threads(write, work)


@scene
def background_computation() -> None:
    """launch() with everything closed, dropped or touched before wait()."""
    for ending in ("wait", "close", "backend", "drop", "storage"):
        _launch(ending)
        gc.collect()


def _launch(ending: str) -> None:
    backend = new_backend(threads=1)
    storage, table = stored(backend, 256, 256)
    ctx = Context(backend)
    x = ctx.input("f32", (256, 64))
    y = ops.mul_mat(table, x)
    for _ in range(40):
        y = ops.mul_mat(table, ops.rms_norm(y, 1e-5))
    ctx.forward(y)
    ctx.alloc()
    x.set(np.ones((64, 256), dtype=np.float32))
    ctx.launch()
    for attempt in (ctx.alloc, ctx.compute, ctx.launch, y.numpy, table.numpy, lambda: ctx.forward(x)):
        with refused(ComputeError, ShapeError):
            attempt()
    with Context(backend) as other:  # building another graph goes on meanwhile
        ops.sqr(other.from_floats([1.0, 2.0]))
    if ending == "wait":
        ctx.wait()
        assert np.isfinite(y.numpy()).all()
    elif ending == "close":
        ctx.close()
    elif ending == "backend":
        backend.close()
    elif ending == "storage":
        storage.close()
        with refused(ComputeError, ClosedError):
            ctx.wait()


@scene
def threads_have_small_stacks() -> None:
    """A prompt's attention and products in threads with stacks as small as musl's."""
    libc, attributes = ctypes.CDLL(None), ctypes.create_string_buffer(128)
    assert libc.pthread_attr_init(attributes) == 0
    assert libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(128 << 10)) == 0
    # What a frame larger than the stack reaches behind it must not be another thread's memory.
    assert libc.pthread_attr_setguardsize(attributes, ctypes.c_size_t(1 << 20)) == 0
    assert libc.pthread_setattr_default_np(attributes) == 0
    rng = np.random.default_rng(1)
    with new_backend(threads=1) as backend, Storage(backend, 1) as storage, Context(backend) as ctx:
        weight = storage.add("w", "q4_K", (1024, 512))
        storage.allocate(0)
        q, k, v = (ctx.from_floats(rng.normal(0, 1, (n, 512, 256)).astype(np.float32)) for n in (4, 2, 2))
        parts = ctx.from_ints(np.array([[0, row + 1] for row in range(512)], dtype=np.int32))
        cells = ctx.from_ints(np.arange(512, dtype=np.int32))
        for _ in range(10):
            out = ops.paged_attention(q, k, v, parts, cells, 0.1)
            y = ops.mul_mat_small_batch(weight, ops.glu(*(ops.reshape(out, 1024, 512) for _ in range(2))))
            ctx.forward(y)
        ctx.launch()  # in a thread that is made for it
        ctx.wait()
        assert np.isfinite(y.numpy()).all()
