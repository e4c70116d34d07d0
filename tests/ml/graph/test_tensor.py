"""Tensors: what they say of themselves, how values get in and out, and when they refuse."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from ollama_engine.errors import ClosedError, EngineError, ShapeError
from ollama_engine.ml import ops
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.graph.types import block_of, dtypes
from tests.plugins.not_run_here import NOT_HERE

SHAPES = [((5,), (4,)), ((5, 3), (4, 20)), ((2, 3, 4), (4, 8, 24)), ((2, 3, 1, 4), (4, 8, 24, 24))]


@pytest.mark.parametrize(("shape", "strides"), SHAPES)
def test_shape_and_strides(ctx: Context, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    t = ctx.zeros("f32", shape)
    assert t.shape == shape
    assert tuple(t.dim(i) for i in range(4)) == (*shape, 1, 1, 1)[:4]
    assert tuple(t.stride(i) for i in range(len(shape))) == strides
    assert t.nbytes == 4 * np.prod(shape)
    assert (t.dtype, t.contiguous) == ("f32", True)


def test_trailing_ones_are_dropped(ctx: Context) -> None:
    assert ctx.zeros("f32", (1, 1, 1)).shape == (1,)
    assert ctx.zeros("f32", (3, 1, 2, 1)).shape == (3, 1, 2)


def test_views_are_not_contiguous(ctx: Context) -> None:
    t = ops.transpose(ctx.zeros("f32", (2, 3)))
    assert (t.shape, t.contiguous, t.stride(0), t.stride(1)) == ((3, 2), False, 8, 4)


@pytest.mark.parametrize("axis", [-1, 4, 1 << 40])
def test_axes_are_0_to_3(ctx: Context, axis: int) -> None:
    t = ctx.zeros("f32", (2,))
    with pytest.raises(ShapeError, match="axis is 0 to 3"):
        t.dim(axis)
    with pytest.raises(ShapeError, match="axis is 0 to 3"):
        t.stride(axis)


@pytest.mark.parametrize("axis", [1.0, "0", None])
def test_an_axis_is_a_whole_number(ctx: Context, axis: object) -> None:
    with pytest.raises(TypeError):
        ctx.zeros("f32", (2,)).dim(axis)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "kept"), [("q", "q"), ("", ""), ("ключ", "ключ"), ("x" * 70, "x" * 63), ("a\0b", "a")], ids=repr
)
def test_names(ctx: Context, name: str, kept: str) -> None:
    assert ctx.zeros("f32", (1,)).named(name).name == kept


def test_repr(ctx: Context) -> None:
    t = ctx.zeros("q8_0", (32, 2)).named("k")
    assert repr(t) == "Tensor(q8_0[32, 2], name='k')"
    ctx.close()
    assert repr(t) == "Tensor(closed)"


def test_tensors_are_not_made_directly() -> None:
    with pytest.raises(TypeError, match="made by a Context"):
        Tensor()
    with pytest.raises(ClosedError):
        _ = Tensor.__new__(Tensor).shape


@pytest.mark.parametrize("dtype", ["f32", "f16", "f64", "i8", "i16", "i32", "i64"])
def test_values_go_in_and_come_out(ctx: Context, dtype: str) -> None:
    kind = {"f": np.float64, "i": np.int64}[dtype[0]]
    values = np.arange(24, dtype=kind).reshape(4, 3, 2).astype(f"{dtype[0]}{int(dtype[1:]) // 8}")
    t = ctx.empty(dtype, (2, 3, 4))
    t.set(values)
    out = t.numpy()
    assert out.dtype == values.dtype
    np.testing.assert_array_equal(out, values)
    into = np.empty_like(values)
    t.read_into(into)
    np.testing.assert_array_equal(into, values)


@pytest.mark.parametrize("dtype", dtypes())
def test_bytes_go_in_and_come_out(ctx: Context, dtype: str) -> None:
    elements, size = block_of(dtype)
    raw = np.random.default_rng(1).integers(0, 256, 6 * size, dtype=np.uint8)
    t = ctx.empty(dtype, (elements * 3, 2))
    t.set_bytes(raw)
    assert t.numpy().tobytes() == raw.tobytes()
    assert t.nbytes == raw.nbytes


def test_type_sizes_are_those_of_the_gguf_package() -> None:
    known = {t.name.lower(): size for t, size in gguf.GGML_QUANT_SIZES.items()}
    del known["q8_1"]  # a type of ggml's kernels, which changed since
    assert {d.lower() for d in dtypes()} >= known.keys()
    for dtype in dtypes():
        assert block_of(dtype) == known.get(dtype.lower(), block_of(dtype))


def test_bf16_travels_as_bytes(ctx: Context) -> None:
    t = ctx.zeros("bf16", (2,))
    t.set(np.array([0x3F80, 0xC000], dtype=np.uint16))
    assert t.numpy().view(np.uint16).tolist() == [0x3F80, 0xC000]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros(7, dtype=np.float32), "holds 32 bytes, the buffer 28"),
        (np.zeros(9, dtype=np.float32), "holds 32 bytes, the buffer 36"),
        (np.zeros(8), "takes float32 values, got float64"),
        (np.zeros(8, dtype=np.int32), "takes float32 values, got int32"),
        (["a", "b"], "takes float32 values"),
        (None, "takes float32 values, got object"),
    ],
    ids=str,
)
def test_set_refuses_other_sizes_and_types(ctx: Context, values: object, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        ctx.zeros("f32", (4, 2)).set(values)


def test_strided_arrays_are_copied_in_order(ctx: Context) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4).T
    t = ctx.zeros("f32", (3, 4))
    t.set(values)
    np.testing.assert_array_equal(t.numpy(), values)


def test_read_into_needs_room_of_the_right_size(ctx: Context) -> None:
    t = ctx.zeros("f32", (4,))
    with pytest.raises(ShapeError, match="holds 16 bytes, the buffer 12"):
        t.read_into(np.empty(3, dtype=np.float32))
    with pytest.raises((BufferError, ValueError)):
        t.read_into(bytes(16))
    with pytest.raises((BufferError, ValueError)):
        t.read_into(np.empty((4, 2), dtype=np.float32)[:, 0])


def test_what_has_no_values_cannot_be_read(ctx: Context) -> None:
    x = ctx.input("f32", (4,))
    y = ops.sqr(x)
    z = y + x
    for t in (x, y, z):
        with pytest.raises(ShapeError, match="has no values"):
            t.numpy()
    with pytest.raises(ShapeError, match="no memory"):
        x.set(np.zeros(4, dtype=np.float32))
    ctx.forward(z)
    ctx.alloc()
    for t in (x, y, z):
        with pytest.raises(ShapeError, match="has no values"):
            t.numpy()
    x.set(np.full(4, 3, dtype=np.float32))
    assert x.numpy().tolist() == [3] * 4
    ctx.compute()
    assert z.numpy().tolist() == [12] * 4
    for t in (x, y):  # their memory may hold something else by now
        with pytest.raises(ShapeError, match="has no values"):
            t.numpy()


def test_what_is_computed_cannot_be_written(ctx: Context) -> None:
    y = ops.sqr(ctx.zeros("f32", (4,)))
    ctx.forward(y)
    ctx.compute()
    with pytest.raises(ShapeError, match="it is computed"):
        y.set(np.zeros(4, dtype=np.float32))


def test_views_of_outputs_survive(ctx: Context) -> None:
    """A view shows its source's memory; asking for the view keeps that memory."""
    x = ctx.input("f32", (256,))
    y = ops.sqr(x)
    tail = ops.view(y, (8,), None, 4 * 248)
    later = ops.sum_rows(ops.scale(tail, 2.0))
    for _ in range(4):
        later = ops.sum_rows(ops.repeat(later, 256))
    ctx.forward(tail, later)
    ctx.alloc()
    x.set(np.arange(256, dtype=np.float32))
    ctx.compute()
    assert tail.numpy().tolist() == [float(i * i) for i in range(248, 256)]


@pytest.mark.parametrize("attribute", ["shape", "dtype", "nbytes", "contiguous", "name"])
def test_a_closed_owner_makes_its_tensors_raise(backend: Backend, attribute: str) -> None:
    ctx = Context(backend)
    t = ctx.zeros("f32", (4,))
    ctx.close()
    with pytest.raises(ClosedError):
        getattr(t, attribute)
    for attempt in (
        t.numpy,
        lambda: t.set(np.zeros(4, np.float32)),
        lambda: t.dim(0),
        lambda: ops.sqr(t),
        lambda: t + t,
    ):
        with pytest.raises(ClosedError):
            attempt()


def test_arithmetic_needs_tensors(ctx: Context) -> None:
    t = ctx.zeros("f32", (4,))
    for other in (2, 1.5, None, np.zeros(4, dtype=np.float32), "x"):
        with pytest.raises(TypeError):
            t + other  # type: ignore[operator]
        with pytest.raises(TypeError):
            other * t  # type: ignore[operator]


# -- storage -----------------------------------------------------------------------------------------------------------


def test_storage_is_planned_then_allocated_once(backend: Backend) -> None:
    with Storage(backend, 3) as storage:
        a, b = storage.add("a", "f32", (64, 4)), storage.add("b", "q8_0", (32, 2))
        with pytest.raises(ShapeError, match="has a tensor 'a' already"):
            storage.add("a", "f32", (1,))
        assert storage.nbytes == 0
        planned = storage.planned_bytes(0)
        assert planned >= a.nbytes + b.nbytes
        with pytest.raises(ShapeError, match="allocate its Storage first"):
            a.numpy()
        storage.allocate(0)
        assert storage.nbytes == planned
        assert not a.numpy().any()
        assert storage["b"].dtype == "q8_0"
        for attempt in (lambda: storage.allocate(0), lambda: storage.add("c", "f32", (1,)), storage.allocate_repacked):
            with pytest.raises(ShapeError, match=r"has its memory already|no repacked layout"):
                attempt()
    assert storage.closed
    with pytest.raises(ClosedError):
        a.numpy()


@pytest.mark.parametrize("capacity", [0, -1, (1 << 20) + 1])
def test_capacity_is_bounded(backend: Backend, capacity: int) -> None:
    with pytest.raises(ShapeError, match="2\\*\\*20"):
        Storage(backend, capacity)


def test_storage_holds_what_it_was_made_for(backend: Backend) -> None:
    with Storage(backend, 1) as storage:
        with pytest.raises(ShapeError, match="no tensors to allocate"):
            storage.allocate(0)
        storage.add("a", "f32", (1,))
        with pytest.raises(ShapeError, match="made for 1 tensors"):
            storage.add("b", "f32", (1,))
        with pytest.raises(ShapeError, match="device is 0 to 0, got 1"):
            storage.allocate(1)
        with pytest.raises(KeyError):
            storage["b"]


def test_mapped_tensors_are_windows(backend: Backend) -> None:
    values = np.arange(1024, dtype=np.float32)
    memory = np.zeros(8192, dtype=np.uint8)
    start = -memory.ctypes.data % 32
    memory[start : start + 4096] = values.view(np.uint8)
    window = memory[start : start + 4096]
    with Storage(backend, 1) as storage:
        t = storage.add("t", "f32", (16, 4))
        storage.map(window, {"t": 64})
        np.testing.assert_array_equal(t.numpy().reshape(-1), values[16:80])
        memory[start + 64] ^= 1
        assert t.numpy()[0, 0] != values[16]
        for attempt in (lambda: t.set(np.zeros((4, 16), np.float32)), lambda: t.set_bytes(bytes(256))):
            with pytest.raises(ShapeError, match="mapped file"):
                attempt()
        with Context(backend) as ctx:
            rows = ctx.zeros("f32", (16, 1))
            with pytest.raises(ShapeError, match="mapped file"):
                ops.set_rows(t, rows, ctx.from_ints([0]))
            with pytest.raises(ShapeError, match="mapped file"):
                ops.copy(ctx.zeros("f32", (16, 4)), ops.view(t, (16, 4), ctx=ctx))


@pytest.mark.parametrize("offsets", [{}, {"t": -32}, {"t": 8}, {"t": 4096}, {"t": 0, "u": 0}, {"u": 0}, {"t": 3072}])
def test_map_takes_places_inside(backend: Backend, offsets: dict[str, int]) -> None:
    memory = np.zeros(8192, dtype=np.uint8)
    start = -memory.ctypes.data % 32
    with Storage(backend, 1) as storage:
        storage.add("t", "f32", (512,))
        with pytest.raises(ShapeError, match=r"cannot be mapped|exactly the tensors"):
            storage.map(memory[start : start + 4096], offsets)
        with pytest.raises(ShapeError, match="multiple of 32"):
            storage.map(memory[start + 1 : start + 4096], {"t": 0})
        storage.allocate(0)


def test_repacked_tensors_serve_products_only(backend: Backend) -> None:
    with Storage(backend, 1) as storage, Context(backend) as ctx:
        t = storage.add("t", "q4_0", (64, 16))
        try:
            storage.allocate_repacked()
        except ShapeError:
            pytest.skip(f"{NOT_HERE}a repacked layout of q4_0")
        values = np.random.default_rng(1).normal(0, 1, (16, 64)).astype(np.float32)
        raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q4_0)
        t.set_bytes(raw)
        x = ctx.from_floats(np.random.default_rng(2).normal(0, 1, (11, 64)))
        wide = ctx.from_floats(np.random.default_rng(2).normal(0, 1, (11, 70)))
        part = ops.view(wide, (64, 11), (280,))
        products = [ops.mul_mat(t, x), ops.mul_mat(t, part)]
        ctx.forward(*products)
        ctx.compute()
        weights = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType.Q4_0)
        for product, right in zip(products, (x.numpy(), wide.numpy()[:, :64]), strict=True):
            np.testing.assert_allclose(product.numpy(), right @ weights.T, atol=0.6)
        rows = ctx.from_ints([1])
        for attempt in (
            t.numpy,
            lambda: ops.view(t, (64, 2), ctx=ctx),
            lambda: ops.get_rows(t, rows),
            lambda: x + t,
            lambda: ops.mul_mat(x, t),
            lambda: ops.set_rows(t, x, rows),
        ):
            with pytest.raises(EngineError):
                attempt()
