"""Scenes of owners that are closed, dropped, never initialised, or closed by an argument."""

from __future__ import annotations

import contextlib
import gc
import logging
import random
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ollama_engine.errors import ClosedError, EngineError, ShapeError
from ollama_engine.ml import ops
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.graph.tensor import Tensor
from tests.ml.graph.scenes import new_backend, refused, scene, stored


@scene
def storage_closed_under_a_graph() -> None:
    backend = new_backend()
    storage, table = stored(backend)
    ctx = Context(backend)
    view = ops.view(table, (64, 2), ctx=ctx)
    y = ops.sqr(view)
    ctx.forward(y)
    ctx.alloc()
    storage.close()
    for attempt in (ctx.compute, ctx.alloc, ctx.reserve, ctx.measure, view.numpy, lambda: view.set(np.ones((2, 64)))):
        with refused(EngineError):
            attempt()
    # The views still describe what is gone; asking them for more must not follow dead pointers.
    ops.cont(ops.permute(view, 1, 0, 2, 3))
    with refused(ClosedError):
        ops.sqr(table)
    del storage, table
    gc.collect()
    ops.reshape(view, 128)
    ctx.close()


@scene
def garbage_in_any_order() -> None:
    """All orders in which owners and tensors can lose their last reference."""
    rng = random.Random(1)
    for _ in range(100):
        backend = new_backend(threads=1, max_nodes=64)
        storage, table = stored(backend)
        ctx = Context(backend)
        x = ctx.input("f32", (64, 4))
        y = x + table
        ctx.forward(y)
        if rng.random() < 0.7:
            ctx.alloc()
            x.set(np.ones((4, 64), dtype=np.float32))
            ctx.compute()
        things = [backend, storage, table, ctx, x, y]
        del backend, storage, table, ctx, x, y
        rng.shuffle(things)
        for thing in things[: rng.randint(0, 3)]:
            if not isinstance(thing, Tensor):
                thing.close()
        thing = None
        while things:
            things.pop()
            if rng.random() < 0.3:
                gc.collect()
    gc.collect()


@scene
def never_initialised() -> None:
    for kind in (Backend, Context, Storage, Tensor):
        bare = kind.__new__(kind)
        for name in dir(kind):
            if name in (
                "__init__",
                "__class__",
                "__subclasshook__",
                "__init_subclass__",
                "__reduce__",
                "__reduce_ex__",
            ):
                continue
            with contextlib.suppress(Exception):
                member = getattr(bare, name)
                for args in ((), (None,), (0,), ("t",), ("f32", (2,)), ("t", "f32", (2,)), (np.zeros(2),), (bare,)):
                    with contextlib.suppress(Exception):
                        member(*args)
    backend = new_backend()
    for kind, args in ((Context, (backend,)), (Storage, (backend, 1)), (Backend, (backend.params,))):
        made = kind(*args)
        with refused(EngineError):
            made.__init__(*args)  # type: ignore[misc]
        made.close()
        made.close()
        with refused(EngineError):
            made.__init__(*args)  # type: ignore[misc]


@scene
def arrays_that_outlive_everything() -> None:
    """Arrays of `mapped` are read after their memory was given up in every way: closed, dropped, planned anew."""
    rng = random.Random(2)
    kept: list[NDArray[np.float32]] = []
    for turn in range(150):
        backend = new_backend(threads=1, max_nodes=64)
        ctx = Context(backend)
        x = ctx.input("f32", (1 << rng.randint(4, 18),))
        y = ops.scale(x, 2.0)
        ctx.forward(y)
        ctx.alloc()
        x.set(np.full(x.shape, turn, dtype=np.float32))
        ctx.compute()
        mapping = y.mapped()
        kept.append(mapping.__enter__()[1:][::2])
        assert (kept[-1] == 2 * turn).all()
        if rng.random() < 0.5:
            mapping.__exit__(None, None, None)
            for rows in (1 << 19, 1 << 20):
                larger = Context(backend)
                larger.forward(ops.sqr(larger.input("f32", (rows,))))
                larger.alloc()
                assert (kept[-1] == 2 * turn).all()
        things = [backend, ctx, x, y, mapping]
        del backend, ctx, x, y, mapping
        rng.shuffle(things)
        for thing in things[: rng.randint(0, 5)]:
            if isinstance(thing, (Backend, Context)):
                thing.close()
        thing = larger = None
        while things:
            things.pop()
        if rng.random() < 0.2:
            gc.collect()
        assert (kept[-1] == 2 * turn).all()
        del kept[: -rng.randint(1, 8)]
    gc.collect()
    assert all((array == array[0]).all() for array in kept)


class Closer:
    """A number, a sequence or an array that closes something while it is converted."""

    def __init__(self, close: Callable[[], None], value: object) -> None:
        self.close, self.value = close, value

    def _number(self) -> object:
        self.close()
        return self.value

    __float__ = __index__ = __int__ = _number

    def __iter__(self) -> object:
        self.close()
        return iter(self.value)

    def __array__(self, *_: object, **__: object) -> object:
        self.close()
        return np.asarray(self.value)

    def __len__(self) -> int:
        return len(self.value)


@scene
def arguments_that_close_their_context() -> None:
    for owner in ("context", "backend"):
        for call in (
            lambda c, x, y, e: ops.scale(x, e(1.0)), lambda c, x, y, e: ops.clamp(x, e(-1.0), 1.0),
            lambda c, x, y, e: ops.rms_norm(x, e(1e-5)), lambda c, x, y, e: ops.softmax(x, None, e(1.0)),
            lambda c, x, y, e: ops.flash_attention(x, x, x, None, e(1.0)), lambda c, x, y, e: ops.top_k(x, e(1)),
            lambda c, x, y, e: ops.permute(x, e(1), 0, 2, 3), lambda c, x, y, e: ops.concat(x, x, e(0)),
            lambda c, x, y, e: ops.view(x, e((2, 2))), lambda c, x, y, e: ops.view(x, (2, 2), e((16,))),
            lambda c, x, y, e: ops.view(x, (2, 2), None, e(0)), lambda c, x, y, e: ops.rope(x, y, e(2)),
            lambda c, x, y, e: ops.rope(x, y, 2, freq_base=e(10.0)), lambda c, x, y, e: c.from_floats(e([1.0])),
            lambda c, x, y, e: c.from_ints(e([1])), lambda c, x, y, e: c.from_floats([1.0], e((1,))),
            lambda c, x, y, e: c.empty("f32", e((4,))), lambda c, x, y, e: c.input("f32", e((4,))),
            lambda c, x, y, e: x.dim(e(0)), lambda c, x, y, e: x.stride(e(0)),
            lambda c, x, y, e: x.set(e(np.zeros((2, 4), dtype=np.float32))),
            lambda c, x, y, e: Storage(c.backend, e(2)),
        ):  # fmt: skip
            backend = new_backend(threads=1, max_nodes=64)
            ctx = Context(backend)
            x, y = ctx.zeros("f32", (4, 2)), ctx.zeros("i32", (1,))
            close = ctx.close if owner == "context" else backend.close
            with contextlib.suppress(EngineError):
                call(ctx, x, y, lambda value, close=close: Closer(close, value))
            assert ctx.closed
            backend.close()


@scene
def exceptions_inside_with() -> None:
    for error in (ValueError, KeyboardInterrupt, SystemExit):
        with contextlib.suppress(error), new_backend() as backend, Context(backend) as ctx:
            x = ctx.input("f32", (4,))
            ctx.forward(ops.sqr(x))
            ctx.alloc()
            raise error
        assert backend.closed
        assert ctx.closed
        with refused(ClosedError):
            x.numpy()


@scene
def log_handlers_that_interfere() -> None:
    backend = new_backend()
    ctx = Context(backend)
    y = ops.sqr(ctx.input("f32", (4,)))
    ctx.forward(y)

    class Meddler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            for attempt in (ctx.close, backend.close, ctx.alloc, ctx.compute, ctx.measure, y.numpy):
                with contextlib.suppress(EngineError):
                    attempt()
            raise ValueError("a broken handler")

    logger = logging.getLogger("ollama_engine")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(Meddler())
    with contextlib.suppress(EngineError, ValueError):
        ctx.alloc()
    with contextlib.suppress(EngineError, ValueError):
        new_backend().close()


@scene
def graphs_that_come_in_turn() -> None:
    """Each keeps its place in memory that all of them share, until a larger one has that memory replaced."""
    rng = np.random.default_rng(3)
    with contextlib.ExitStack() as stack:
        backend = stack.enter_context(new_backend())
        graphs = []
        for n in (1 << 18, 1 << 16, 3, 1 << 21, 1 << 18):  # the fourth needs more than there is
            ctx = stack.enter_context(Context(backend))
            x = ctx.input("f32", (n,))
            y = ops.sqr(x + x) * x
            ctx.forward(y)
            graphs.append((ctx, x, y))
            for _ in range(4):
                ctx, x, y = graphs[rng.integers(len(graphs))]
                ctx.alloc()
                for other, _, result in graphs:
                    if other is not ctx:
                        with refused(ShapeError):
                            result.numpy()
                with refused(ShapeError):
                    y.numpy()
                values = rng.normal(size=x.shape[0]).astype(np.float32)
                x.set(values)
                ctx.compute()
                np.testing.assert_allclose(y.numpy(), 4 * values**3, rtol=1e-4, atol=1e-5)
