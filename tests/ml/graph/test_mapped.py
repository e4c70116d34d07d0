"""Tensor.mapped: values seen where they lie, what is refused meanwhile, and what is left of an array afterwards."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest

from ollama_engine.errors import ClosedError, ComputeError, ShapeError
from ollama_engine.ml import ops
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.graph.tensor import Tensor
from tests.support.doubled import doubled

VALUES = np.arange(24, dtype=np.float32).reshape(4, 6)


@pytest.fixture
def graph(ctx: Context) -> tuple[Tensor, Tensor]:
    return doubled(ctx, VALUES)


def test_an_output_is_seen_where_it_lies(ctx: Context, graph: tuple[Tensor, Tensor]) -> None:
    x, y = graph
    with y.mapped() as first, y.mapped() as second:
        np.testing.assert_array_equal(first, 2 * VALUES)
        assert (first.dtype, first.shape, first.flags.c_contiguous) == (np.float32, (4, 6), True)
        assert np.shares_memory(first, second)
        assert not np.shares_memory(first, y.numpy())
    x.set(VALUES + 1)
    ctx.compute()
    np.testing.assert_array_equal(first, 2 * VALUES + 2)  # it was no copy


def test_an_input_is_seen_once_it_is_written(ctx: Context) -> None:
    x = ctx.input("f32", (3,))
    ctx.forward(ops.sqr(x))
    ctx.alloc()
    with pytest.raises(ShapeError, match="has no values"):
        x.mapped()
    x.set(np.array([7, 8, 9], dtype=np.float32))
    with x.mapped() as view, x.mapped() as other:
        assert view.tolist() == [7, 8, 9]
        assert np.shares_memory(view, other)


def test_what_is_not_contiguous_comes_strided(ctx: Context) -> None:
    x = ctx.input("f32", (6, 4))
    y = ops.scale(x, 2.0)
    turned, part = ops.transpose(y), ops.view(y, (3, 4), (24,), 8)
    ctx.forward(turned, part)
    ctx.alloc()
    x.set(VALUES)
    ctx.compute()
    with turned.mapped() as array, part.mapped() as inner:
        np.testing.assert_array_equal(array, 2 * VALUES.T)
        np.testing.assert_array_equal(inner, 2 * VALUES[:, 2:5])
        assert np.shares_memory(array, inner)


@pytest.mark.parametrize("dtype", ["f32", "q8_0", "bf16"])
def test_constants_and_stored_tensors_are_copied(backend: Backend, ctx: Context, dtype: str) -> None:
    with Storage(backend, 1) as storage:
        t = storage.add("t", dtype, (32, 2))
        storage.allocate(0)
        for tensor in (t, ctx.zeros(dtype, (32, 2))):
            with tensor.mapped() as view, tensor.mapped() as other:
                np.testing.assert_array_equal(view, tensor.numpy())
                assert not np.shares_memory(view, other)
                assert not view.flags.writeable


def test_the_array_is_read_only(graph: tuple[Tensor, Tensor]) -> None:
    with graph[1].mapped() as array:
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True


def test_what_would_change_the_memory_is_refused_meanwhile(
    backend: Backend, ctx: Context, graph: tuple[Tensor, Tensor]
) -> None:
    x, y = graph
    other = Context(backend)
    other.forward(ops.sqr(other.input("f32", (6, 4))))
    refused: list[Callable[[], object]] = [
        ctx.compute,
        ctx.launch,
        ctx.alloc,
        ctx.reserve,
        other.alloc,
        other.reserve,
        lambda: x.set(VALUES),
        lambda: x.set_bytes(VALUES),
    ]
    with y.mapped() as array:
        for attempt in refused:
            with pytest.raises(ComputeError, match="is mapped"):
                attempt()
        constant = other.from_floats([1.0, 2.0])  # building goes on
        constant.set(np.zeros(2, np.float32))
        np.testing.assert_array_equal(array, 2 * VALUES)
    x.set(VALUES)
    ctx.compute()
    other.alloc()
    other.close()


def test_refusals_end_with_the_last_block_however_it_ends(ctx: Context, graph: tuple[Tensor, Tensor]) -> None:
    x, y = graph
    with pytest.raises(KeyError), y.mapped():
        raise KeyError
    outer = y.mapped()
    with outer:
        with y.mapped():
            pass
        with pytest.raises(ComputeError, match="is mapped"):
            x.set(VALUES)
    with pytest.raises(ClosedError, match="has ended"):
        outer.__enter__()
    y.mapped()  # dropped without being entered
    x.set(VALUES)
    ctx.compute()


def test_nothing_is_mapped_while_the_backend_computes(ctx: Context, graph: tuple[Tensor, Tensor]) -> None:
    x, y = graph
    x.set(VALUES)
    ctx.launch()
    with pytest.raises(ComputeError, match="wait"):
        y.mapped()
    ctx.wait()
    with y.mapped() as array:
        np.testing.assert_array_equal(array, 2 * VALUES)


def test_closing_is_put_off_not_refused() -> None:
    backend = Backend(BackendParams(threads=1), max_nodes=64)
    ctx = Context(backend)
    _, y = doubled(ctx, VALUES)
    with y.mapped() as array:
        ctx.close()
        np.testing.assert_array_equal(array, 2 * VALUES)
        with pytest.raises(ClosedError):
            y.mapped()
        backend.close()
        np.testing.assert_array_equal(array, 2 * VALUES)
    np.testing.assert_array_equal(array, 2 * VALUES)


def test_a_kept_array_does_not_hinder_larger_graphs(
    backend: Backend, ctx: Context, graph: tuple[Tensor, Tensor]
) -> None:
    """Planning a larger graph frees the memory of the smaller one, unless somebody looks at it."""
    with graph[1].mapped() as array:
        pass
    with Context(backend) as larger:
        x = larger.input("f32", (1 << 20,))
        y = ops.sqr(x)
        larger.forward(y)
        larger.alloc()
        np.testing.assert_array_equal(array, 2 * VALUES)
        x.set(np.full(1 << 20, 3, np.float32))
        larger.compute()
        assert y.numpy()[-1] == 9
        np.testing.assert_array_equal(array, 2 * VALUES)
    del array
    gc.collect()
    with pytest.raises(ShapeError, match="no memory any more"):
        graph[1].mapped()


def test_tensors_without_values_are_refused(ctx: Context) -> None:
    x = ctx.input("f32", (4,))
    y = ops.sqr(x)
    for t in (x, y):
        with pytest.raises(ShapeError, match="has no values"):
            t.mapped()
    ctx.close()
    with pytest.raises(ClosedError):
        x.mapped()
