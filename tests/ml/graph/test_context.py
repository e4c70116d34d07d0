"""Contexts: constants and inputs, graphs, memory, and the order in which things are done."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ollama_engine.errors import ClosedError, ComputeError, EngineError, NoMemoryError, ShapeError
from ollama_engine.ml import ops
from ollama_engine.ml.device import hostmem
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage

# -- constants ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "shape", "expected"),
    [
        ([1, 2.5, -3], None, (3,)),
        (7.0, None, (1,)),
        (np.zeros((2, 3)), None, (3, 2)),
        (np.zeros((2, 3)), (2, 3), (2, 3)),
        (range(6), (1, 2, 3), (1, 2, 3)),
        ([True, False], 2, (2,)),
        (np.arange(4, dtype=np.uint8), np.int64(4), (4,)),
    ],
    ids=str,
)
def test_from_floats(ctx: Context, values: object, shape: object, expected: tuple[int, ...]) -> None:
    t = ctx.from_floats(values, shape)
    assert (t.dtype, t.shape) == ("f32", expected)
    np.testing.assert_array_equal(t.numpy().reshape(-1), np.asarray(values, dtype=np.float32).reshape(-1))


def test_from_floats_rounds_to_f16(ctx: Context) -> None:
    t = ctx.from_floats([0.1, np.inf, np.nan, 65504], dtype="f16")
    np.testing.assert_array_equal(t.numpy(), np.array([0.1, np.inf, np.nan, 65504], dtype=np.float16))


@pytest.mark.parametrize("dtype", ["i32", "i64"])
def test_from_ints(ctx: Context, dtype: str) -> None:
    limits = np.iinfo({"i32": np.int32, "i64": np.int64}[dtype])
    t = ctx.from_ints([limits.min, -1, limits.max], dtype=dtype)
    assert t.dtype == dtype
    assert t.numpy().tolist() == [limits.min, -1, limits.max]


WRONG_CONSTANTS: list[tuple[str, Callable[[Context], object], str]] = [
    ("too few floats", lambda c: c.from_floats([1, 2, 3], (2, 2)), "takes 4 values, got 3"),
    ("too many floats", lambda c: c.from_floats(range(5), (2, 2)), "takes 4 values, got 5"),
    ("too few ints", lambda c: c.from_ints([1], (2,)), "takes 2 values, got 1"),
    ("no values", lambda c: c.from_floats([]), "1 to 2"),
    ("ragged", lambda c: c.from_floats([[1, 2], [3]]), "expected floats"),
    ("text", lambda c: c.from_floats(["1"]), "expected floats, got an array of"),
    ("objects", lambda c: c.from_floats([None]), "expected floats"),
    ("complex", lambda c: c.from_floats([1j]), "expected floats"),
    ("fractions as ints", lambda c: c.from_ints([1.5]), "expected whole numbers"),
    ("too large for f32", lambda c: c.from_floats([1e39]), "too large for f32"),
    ("too large for f16", lambda c: c.from_floats([70000.0], dtype="f16"), "too large for f16"),
    ("too large for i32", lambda c: c.from_ints([1 << 31]), "i32 holds"),
    ("too large for i64", lambda c: c.from_ints([1 << 63], dtype="i64"), "i64 holds"),
    ("floats as q8_0", lambda c: c.from_floats([1.0] * 32, dtype="q8_0"), "f32 or f16"),
    ("ints as f32", lambda c: c.from_ints([1], dtype="f32"), "i32 or i64"),
    ("unknown type", lambda c: c.empty("q9", (32,)), "unknown tensor type 'q9'"),
    ("half a block", lambda c: c.empty("q4_K", (128,)), "blocks of 256"),
    ("no dimension", lambda c: c.empty("f32", ()), "1 to 4 dimensions"),
    ("five dimensions", lambda c: c.empty("f32", (1, 1, 1, 1, 1)), "1 to 4 dimensions"),
    ("endless dimensions", lambda c: c.empty("f32", iter(int, 1)), "1 to 4 dimensions"),
    ("zero", lambda c: c.empty("f32", (2, 0)), "whole numbers from 1"),
    ("negative", lambda c: c.zeros("f32", (-2,)), "whole numbers from 1"),
    ("fraction", lambda c: c.zeros("f32", (2.0,)), "whole numbers from 1"),
    ("beyond 32 bits", lambda c: c.input("f32", (1 << 31,)), "whole numbers from 1"),
    ("too many rows", lambda c: c.input("f32", (1, 1 << 16, 1 << 16)), "2\\*\\*31 - 1 rows"),
    ("too many elements", lambda c: c.input("f32", (1 << 20, 1 << 21)), "2\\*\\*40 elements"),
]


@pytest.mark.parametrize(("attempt", "message"), [c[1:] for c in WRONG_CONSTANTS], ids=[c[0] for c in WRONG_CONSTANTS])
def test_wrong_constants(ctx: Context, attempt: Callable[[Context], object], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        attempt(ctx)


@pytest.mark.parametrize("attempt", [
    lambda c: c.empty("f32", (1 << 20, 1 << 19)),
    lambda c: c.zeros("q8_0", (1 << 30, 1 << 9)),
    lambda c: c.from_floats(np.broadcast_to(np.float32(1), (1 << 19, 1 << 20))),
])  # fmt: skip
def test_far_more_than_there_is(ctx: Context, attempt: Callable[[Context], object]) -> None:
    """Half a tebi-element raises at once; the system is not asked, so that nobody is killed for it later."""
    if hostmem.available_bytes() > 1 << 39:
        pytest.skip("this machine has the memory")
    with pytest.raises(NoMemoryError, match="are available"):
        attempt(ctx)
    assert ctx.zeros("f32", (4,)).numpy().tolist() == [0] * 4


def test_the_system_is_asked_before_much_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for many constants, since it takes longer than copying them; again after a 64th of the answer was taken."""
    available, asked = 64 << 20, []

    def ask() -> int:
        asked.append(available)
        return available

    monkeypatch.setattr("ollama_engine.ml.graph.context.available_bytes", ask)
    with Backend(BackendParams(threads=1), max_nodes=64) as backend, Context(backend) as ctx:
        for _ in range(8):
            ctx.zeros("i8", (128 << 10,))
        assert len(asked) == 1
        ctx.zeros("i8", (128 << 10,))
        assert len(asked) == 2
        with pytest.raises(NoMemoryError, match="bytes are needed; 67108864 are available"):
            ctx.empty("i8", (available + 1,))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q8_0", "q4_K", "i32", "i8"])
def test_zeros(ctx: Context, dtype: str) -> None:
    assert not ctx.zeros(dtype, (256, 2)).numpy().any()


def test_constants_of_all_sizes_do_not_meet(ctx: Context) -> None:
    sizes = (1, 100_000, 3, 7, 16_384, 16_000, 5, 300_000, 2)
    constants = [ctx.from_floats(np.full(n, i)) for i, n in enumerate(sizes)]
    for i, t in enumerate(constants):
        assert (t.numpy() == i).all()


# -- graphs ------------------------------------------------------------------------------------------------------------


def test_inputs_are_set_before_every_compute(ctx: Context) -> None:
    x = ctx.input("f32", (4,), name="tokens")
    y = ops.sqr(x)
    ctx.forward(y)
    ctx.alloc()
    with pytest.raises(ShapeError, match="inputs not set since the last compute: tokens"):
        ctx.compute()
    for n in (2, 3, 4):
        x.set(np.full(4, n, dtype=np.float32))
        ctx.compute()
        assert y.numpy().tolist() == [n * n] * 4
        with pytest.raises(ShapeError, match="inputs not set"):
            ctx.compute()


def test_compute_without_alloc_needs_no_inputs(ctx: Context) -> None:
    y = ops.sqr(ctx.from_floats([3]))
    ctx.forward(y)
    ctx.compute()
    assert y.numpy()[0] == 9
    ctx.compute()
    z = ops.sqr(ctx.input("f32", (1,)))
    ctx.forward(z)
    with pytest.raises(ComputeError, match="call alloc"):
        ctx.compute()


def test_a_graph_can_grow_after_computing(ctx: Context) -> None:
    y = ops.sqr(ctx.from_floats([3]))
    ctx.forward(y)
    ctx.compute()
    z = y + y
    ctx.forward(z)
    with pytest.raises(ShapeError, match="has no values"):
        z.numpy()
    ctx.compute()
    assert (y.numpy()[0], z.numpy()[0]) == (9, 18)
    assert ctx.n_nodes == 2


def test_an_empty_graph_is_refused(ctx: Context) -> None:
    for attempt in (ctx.alloc, ctx.compute, ctx.measure, ctx.reserve):
        with pytest.raises(ShapeError, match="no operation"):
            attempt()
    ctx.forward(ctx.from_floats([1]))  # a constant is no operation
    with pytest.raises(ShapeError, match="no operation"):
        ctx.compute()


def test_one_context_at_a_time_has_memory(backend: Backend) -> None:
    with Context(backend) as first, Context(backend) as second:
        pairs = []
        for ctx, n in ((first, 100), (second, 100_000)):
            x = ctx.input("f32", (n,))
            y = ops.scale(ops.sqr(x), 2)
            ctx.forward(y)
            pairs.append((ctx, x, y, n))
        for ctx, x, y, n in (*pairs, *pairs, *pairs):
            ctx.alloc()
            x.set(np.full(n, 3, dtype=np.float32))
            ctx.compute()
            assert (y.numpy() == 18).all()
        with pytest.raises(ShapeError, match="another context was allocated"):
            pairs[0][2].numpy()
        with pytest.raises(ShapeError, match="another context was allocated"):
            pairs[0][1].set(np.zeros(100, dtype=np.float32))
        with pytest.raises(ComputeError, match="another context"):
            first.compute()


def test_same_sizes_other_structure(backend: Backend) -> None:
    """ggml would reuse the first plan for the second graph, and overwrite a value that is still needed there."""
    answers = []
    for late in (False, True):
        with Context(backend) as ctx:
            x = ctx.input("f32", (64,))
            a = ops.scale(x, 2)
            b = ops.sum_rows(ops.repeat(a, 64, 8))
            c = ops.repeat(ops.sum_rows(ops.reshape(b, 8)), 64)
            d = ops.cont(ops.transpose(ops.reshape(c, 8, 8)))
            e = ops.scale(ops.reshape(d, 64), 1)
            y = (a if late else e) + e
            ctx.forward(y)
            ctx.alloc()
            x.set(np.ones(64, dtype=np.float32))
            ctx.compute()
            answers.append(y.numpy()[0])
    assert answers == [2048.0, 1026.0]


def test_measure_and_reserve(backend: Backend) -> None:
    with Backend(BackendParams(threads=1), max_nodes=64) as fresh, Context(fresh) as ctx:
        y = ops.sqr(ops.scale(ctx.input("f32", (1 << 18,)), 2))
        ctx.forward(y)
        assert fresh.graph_bytes() == {"CPU": 0}
        needed = ctx.measure()
        assert needed["CPU"] >= 1 << 20
        assert fresh.graph_bytes() == {"CPU": 0}
        ctx.reserve()
        assert fresh.graph_bytes() == needed
        ctx.alloc()
        assert fresh.graph_bytes() == needed


@pytest.mark.parametrize("threads", [1, 2])
def test_scratch_memory_of_the_kernels_is_planned(threads: int) -> None:
    """A product with a Q8_0 weight first converts the other operand to Q8_0, 34 bytes for 32 values."""
    with Backend(BackendParams(threads=threads), max_nodes=64) as fresh, Storage(fresh, 1) as weights:
        w = weights.add("w", "q8_0", (256, 8))
        weights.allocate(0)
        assert fresh.work_bytes() == 0
        for rows, most in ((128, 128), (4, 128), (512, 512)):
            with Context(fresh) as ctx:
                ctx.forward(ops.mul_mat(w, ctx.input("f32", (256, rows))))
                assert ctx.measure() == ctx.measure()
                ctx.reserve()
                assert 0 <= fresh.work_bytes() - most * 256 // 32 * 34 <= 64 * threads
        with Context(fresh) as ctx:
            ctx.forward(ops.scale(ctx.input("f32", (256, 1024)), 2))
            taken = fresh.work_bytes()
            ctx.reserve()
            assert fresh.work_bytes() == taken


def test_a_graph_far_larger_than_memory(backend: Backend) -> None:
    with Context(backend) as ctx:
        y = ops.sqr(ctx.input("f32", (1 << 20, 1 << 19)))
        ctx.forward(y)
        assert ctx.measure()["CPU"] >= 1 << 41
        for attempt in (ctx.reserve, ctx.alloc):
            with pytest.raises(NoMemoryError, match="a graph of 1 operations needs CPU"):
                attempt()


def test_contexts_do_not_mix(backend: Backend, ctx: Context) -> None:
    x = ctx.zeros("f32", (4,))
    with Context(backend) as other, Backend(BackendParams(threads=1)) as strange:
        y = other.zeros("f32", (4,))
        with pytest.raises(ShapeError, match="two different contexts"):
            x + y
        for attempt in (lambda: ctx.forward(y), lambda: ctx.expand(y)):
            with pytest.raises(ShapeError, match="tensors of this context"):
                attempt()
        with Storage(strange, 1) as storage:
            t = storage.add("t", "f32", (4,))
            storage.allocate(0)
            with pytest.raises(ShapeError, match="another Backend"):
                x + t
        with pytest.raises(TypeError):
            ctx.forward("y")  # type: ignore[arg-type]


@pytest.mark.parametrize("max_nodes", [7, 1025, -1])
def test_max_nodes_is_bounded(backend: Backend, max_nodes: int) -> None:
    with pytest.raises(ShapeError, match="max_nodes is 8 to 1024"):
        Context(backend, max_nodes=max_nodes)


def test_a_full_graph_says_so(backend: Backend) -> None:
    with Context(backend, max_nodes=16) as ctx:
        t = ctx.zeros("f32", (4,))
        for _ in range(12):
            t = t + t
        with pytest.raises(ShapeError, match="more than 16 tensors"):
            t + t
        ctx.forward(t)
        ctx.compute()


@pytest.mark.parametrize("taken", range(2, 13))
@pytest.mark.parametrize(
    ("name", "leaves"), [("paged_attention", 3), ("mul_mat_id_small_batch", 2), ("flash_attention", 1)]
)
def test_what_a_nearly_full_graph_takes_can_be_computed(backend: Backend, name: str, leaves: int, taken: int) -> None:
    """An operation wants room for 4 tensors and for those of its operands that are stored, which the graph counts too.

    Where that is missing it is refused, and not its output afterwards.
    """
    with Storage(backend, 4) as storage, Context(backend, max_nodes=16) as ctx:
        experts, keys = storage.add("w", "q8_0", (32, 4, 2)), storage.add("k", "f16", (32, 4))
        chosen, cells = storage.add("chosen", "i32", (2, 1)), storage.add("cells", "i32", (4,))
        storage.allocate(0)
        for tensor in (experts, keys, chosen, cells):
            tensor.set_bytes(np.zeros(tensor.nbytes, dtype=np.uint8))
        x = ctx.zeros("f32", (32, 1))
        for _ in range(taken - 1):
            ctx.zeros("f32", (1,))
        attempts = {
            "paged_attention": lambda: ops.paged_attention(x, keys, keys, chosen, cells),
            "mul_mat_id_small_batch": lambda: ops.mul_mat_id_small_batch(experts, x, chosen),
            "flash_attention": lambda: ops.flash_attention(x, keys, keys),
        }
        if taken + leaves + 4 > 16:
            with pytest.raises(ShapeError, match="larger max_nodes"):
                attempts[name]()
            return
        ctx.forward(attempts[name]())
        ctx.compute()


ROWS_CASES: list[tuple[str, Callable[[Context, object], object]]] = [
    ("get_rows", lambda c, i: ops.get_rows(c.zeros("q8_0", (32, 5)), i)),
    ("set_rows", lambda c, i: ops.set_rows(c.zeros("f16", (4, 5)), c.zeros("f32", (4, 3)), i)),
    ("mul_mat_id",
     lambda c, i: ops.mul_mat_id(c.zeros("f32", (4, 2, 5)), c.zeros("f32", (4, 1, 1)), ops.reshape(i, 3, 1))),
    ("a view", lambda c, i: ops.get_rows(c.zeros("f32", (4, 5)), ops.view(i, (2,), None, 4))),
    ("a copy", lambda c, i: ops.get_rows(c.zeros("f32", (4, 5)), ops.reshape(ops.cont(ops.reshape(i, 1, 3)), 3))),
]  # fmt: skip


@pytest.mark.parametrize("build", [c[1] for c in ROWS_CASES], ids=[c[0] for c in ROWS_CASES])
@pytest.mark.parametrize("bad", [5, -1, 1 << 30])
def test_row_numbers_are_checked(ctx: Context, build: Callable[[Context, object], object], bad: int) -> None:
    index = ctx.input("i32", (3,))
    y = build(ctx, index)
    ctx.forward(y)
    ctx.alloc()
    index.set(np.array([0, 4, bad], dtype=np.int32))
    with pytest.raises(ShapeError, match="row numbers are 0 to 4"):
        ctx.compute()
    index.set(np.array([0, 4, 2], dtype=np.int32))
    ctx.compute()


def test_row_numbers_of_what_is_not_computed_do_not_matter(ctx: Context) -> None:
    ops.get_rows(ctx.zeros("f32", (4, 5)), ctx.from_ints([9]))
    y = ops.sqr(ctx.from_floats([2]))
    ctx.forward(y)
    ctx.compute()
    assert y.numpy()[0] == 4


def test_computed_row_numbers_are_refused(ctx: Context) -> None:
    numbers = ops.get_rows(ctx.from_ints([[1], [2]]), ctx.from_ints([0]))
    with pytest.raises(ShapeError, match="row numbers must be an input"):
        ops.get_rows(ctx.zeros("f32", (4, 5)), ops.reshape(numbers, 1))
    order = ops.argsort(ctx.zeros("f32", (6,)))
    with pytest.raises(ShapeError, match="sorted out of 6 values cannot select among 5"):
        ops.get_rows(ctx.zeros("f32", (4, 5)), order)


def test_background(ctx: Context) -> None:
    y = ops.sqr(ctx.from_floats([3]))
    ctx.forward(y)
    with pytest.raises(ComputeError, match="launch"):
        ctx.wait()
    ctx.launch()
    ctx.wait()
    assert y.numpy()[0] == 9


def test_closing(backend: Backend) -> None:
    ctx = Context(backend)
    y = ops.sqr(ctx.zeros("f32", (4,)))
    ctx.forward(y)
    assert not ctx.closed
    ctx.close()
    ctx.close()
    assert ctx.closed
    for attempt in (
        ctx.alloc, ctx.compute, ctx.measure, ctx.reserve, lambda: ctx.zeros("f32", (1,)), lambda: ctx.forward(y),
        lambda: ctx.input("f32", (1,)), lambda: ctx.n_nodes,
    ):  # fmt: skip
        with pytest.raises(ClosedError):
            attempt()


def test_a_storage_that_is_gone(backend: Backend, ctx: Context) -> None:
    storage = Storage(backend, 1)
    t = storage.add("t", "f32", (4,))
    with pytest.raises(ShapeError, match="allocate its Storage first"):
        ops.view(t, (4,), ctx=ctx)
    storage.allocate(0)
    ctx.forward(ops.sqr(ops.view(t, (4,), ctx=ctx)))
    ctx.compute()
    storage.close()
    with pytest.raises(EngineError):
        ctx.compute()
