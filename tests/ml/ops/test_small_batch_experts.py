"""mul_mat_id_small_batch: against numpy in exact arithmetic, against ggml's own product, and against itself bit by
bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine.errors import ShapeError
from ollama_engine.ml import ops
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage, can_repack
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.ops.small_batch import SMALL_BATCH_VARIANTS, reads_in_place
from tests.ml.ops.small_batch_weights import (
    QUANTIZED,
    QUANTIZED_KERNELS,
    Bytes,
    Floats,
    block_of,
    every_set,
    kernels,
    raw_weights,
    rounded,
    values_of,
)
from tests.support.instruction_sets import RecordProperty
from tests.support.suite import slow_except

RNG = np.random.default_rng(20_261_121)
Ids = NDArray[np.int32]


def raw_experts(dtype: str, experts: int, m: int, k: int) -> Bytes:
    return raw_weights(dtype, experts * m, k).reshape(experts, m, -1)


def routes(tokens: int, used: int, experts: int) -> Ids:
    """Different experts for each token."""
    return np.stack([RNG.permutation(experts)[:used] for _ in range(tokens)]).astype(np.int32)


def product(backend: Backend, dtype: str, raw: Bytes, x: Floats, ids: Ids, name: str | None = None, *,
            variant: str = "spread", by_ggml: bool = False) -> Floats:  # fmt: skip
    """The result [tokens, used, m] of mul_mat_id_small_batch, or of ggml's mul_mat_id; x [tokens, used or 1, k]."""
    with Storage(backend, 1) as storage, Context(backend) as ctx:
        weight = storage.add("w", dtype, (x.shape[2], raw.shape[1], raw.shape[0]))
        storage.allocate(0)
        weight.set_bytes(raw)
        b, i = ctx.from_floats(x), ctx.from_ints(ids)
        y = ops.mul_mat_id(weight, b, i) if by_ggml else ops.mul_mat_id_small_batch(weight, b, i, name, variant)
        ctx.forward(y)
        ctx.compute()
        out: Floats = y.numpy()
        return out.reshape(*ids.shape, raw.shape[1])


def check(backend: Backend, dtype: str, raw: Bytes, x: Floats, ids: Ids, name: str | None = None) -> None:
    """Against the exact product of dequantized weights and rounded activations."""
    k = x.shape[2]
    weights = values_of(dtype, raw.reshape(-1, raw.shape[2])).reshape(*raw.shape[:2], k)[ids]
    acts = rounded(dtype, np.broadcast_to(x, (*ids.shape, k)).reshape(-1, k)).reshape(*ids.shape, k)
    expected = np.einsum("tumk,tuk->tum", weights, acts)
    sizes = np.einsum("tumk,tuk->tum", np.abs(weights), np.abs(acts))
    assert (np.abs(product(backend, dtype, raw, x, ids, name) - expected) <= 2e-6 * sizes + 1e-6).all()


SIZES = [(256, 1, 3), (256, 16, 1), (512, 37, 4), (1280, 21, 9), (768, 100, 2)]


@pytest.fixture(scope="module")
def one_thread() -> Iterator[Backend]:
    with Backend(BackendParams(threads=1), max_nodes=64) as backend:
        yield backend


@pytest.mark.parametrize(("dtype", "name"), kernels(QUANTIZED_KERNELS))
@pytest.mark.parametrize(("k", "m", "tokens"), slow_except(SIZES, (256, 16, 1), (512, 37, 4)))
def test_against_numpy(backend: Backend, dtype: str, name: str, k: int, m: int, tokens: int) -> None:
    raw = raw_experts(dtype, 5, m, k)
    for rows in (1, 3):  # of gate and up, and of down
        x = RNG.normal(0, 3, (tokens, rows, k)).astype(np.float32)
        check(backend, dtype, raw, x, routes(tokens, 3, 5), name)


@pytest.mark.parametrize("k", slow_except([32, 96, 544], 96))
@pytest.mark.parametrize(("dtype", "name"), kernels(case for case in QUANTIZED_KERNELS if block_of(case[0]) < 256))
def test_rows_of_few_blocks(backend: Backend, dtype: str, name: str, k: int) -> None:
    raw = raw_experts(dtype, 4, 18, k)
    for tokens in (1, 3):
        check(backend, dtype, raw, RNG.normal(0, 3, (tokens, 1, k)).astype(np.float32), routes(tokens, 2, 4), name)


IDS: dict[str, Ids] = {
    "all the same": np.full((6, 1), 2, np.int32),
    "all of one token the same": np.full((1, 4), 3, np.int32),
    "twice in a token": np.array([[0, 1, 0], [1, 1, 2], [3, 0, 3]], np.int32),
    "all experts": np.array([[3, 1, 2, 0]], np.int32),
    "the first and the last": np.array([[0, 3], [3, 0]], np.int32),
    "more than a tile for one": np.array([[1, i % 4] for i in range(19)], np.int32),
}


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS.keys())
@pytest.mark.parametrize("dtype", QUANTIZED)
def test_who_goes_where(backend: Backend, dtype: str, ids: Ids) -> None:
    raw = raw_experts(dtype, 4, 34, 512)
    for rows in {1, ids.shape[1]}:
        check(backend, dtype, raw, RNG.normal(0, 1, (len(ids), rows, 512)).astype(np.float32), ids)


@pytest.mark.parametrize("dtype", slow_except(QUANTIZED, "q4_K", "mxfp4"))
def test_every_number_of_tokens_gives_the_same_bits(
    backend: Backend, one_thread: Backend, dtype: str, record_property: RecordProperty
) -> None:
    """A row does not see the others, nor how many threads there are, nor the instruction set."""
    raw = raw_experts(dtype, 6, 53, 512)
    x, ids = RNG.normal(0, 1, (20, 1, 512)).astype(np.float32), routes(20, 2, 6)
    expected = product(one_thread, dtype, raw, x, ids, "scalar")
    for name in every_set(dtype, record_property):
        for n in (1, 2, 3, 7, 20):
            for threads in (backend, one_thread):
                got = product(threads, dtype, raw, x[:n], ids[:n], name)
                assert got.tobytes() == expected[:n].tobytes(), (name, n)


@pytest.mark.parametrize("dtype", slow_except(QUANTIZED, "q4_K", "mxfp4"))
def test_every_variant_gives_the_same_bits(backend: Backend, dtype: str, record_property: RecordProperty) -> None:
    raw, x, ids = raw_experts(dtype, 6, 53, 1024), RNG.normal(0, 1, (4, 1, 1024)).astype(np.float32), routes(4, 3, 6)
    expected = product(backend, dtype, raw, x, ids, "scalar")
    for name in every_set(dtype, record_property):
        for variant in SMALL_BATCH_VARIANTS:
            assert product(backend, dtype, raw, x, ids, name, variant=variant).tobytes() == expected.tobytes(), variant


@pytest.mark.parametrize("dtype", slow_except(QUANTIZED, "q4_K", "q5_1"))
@pytest.mark.parametrize("blocks", [1, 3])
def test_many_rows_of_an_expert_give_the_same_bits(
    backend: Backend, dtype: str, blocks: int, record_property: RecordProperty
) -> None:
    """Experts with 1, 19, 20, 33 and 47 rows beside each other: kernels for few rows and for many."""
    k = blocks * block_of(dtype)
    raw = raw_experts(dtype, 5, 53, k)
    ids = RNG.permutation(np.repeat(np.arange(5, dtype=np.int32), [1, 19, 20, 33, 47])).reshape(-1, 1)
    x = RNG.normal(0, 1, (len(ids), 1, k)).astype(np.float32)
    expected = product(backend, dtype, raw, x, ids, "scalar")
    for name in every_set(dtype, record_property):
        assert product(backend, dtype, raw, x, ids, name).tobytes() == expected.tobytes(), name


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_as_a_product_with_one_matrix(backend: Backend, dtype: str) -> None:
    """The same bits as mul_mat_small_batch with each expert by itself."""
    raw = raw_experts(dtype, 3, 40, 768)
    x, ids = RNG.normal(0, 1, (4, 2, 768)).astype(np.float32), np.array([[0, 1], [1, 2], [2, 0], [1, 0]], np.int32)
    got = product(backend, dtype, raw, x, ids)
    for expert in range(3):
        rows = x[ids == expert]
        with Storage(backend, 1) as storage, Context(backend) as ctx:
            weight = storage.add("w", dtype, (768, 40))
            storage.allocate(0)
            weight.set_bytes(raw[expert])
            y = ops.mul_mat_small_batch(weight, ctx.from_floats(rows))
            ctx.forward(y)
            ctx.compute()
            assert y.numpy().tobytes() == got[ids == expert].tobytes()


@pytest.mark.parametrize("dtype", QUANTIZED)
@pytest.mark.parametrize("tokens", slow_except([1, 2, 7, 16], 1, 7))
def test_against_ggml(backend: Backend, dtype: str, tokens: int) -> None:
    raw = raw_experts(dtype, 8, 48, 1024)
    x, ids = RNG.normal(0, 1, (tokens, 1, 1024)).astype(np.float32), routes(tokens, 4, 8)
    ours, theirs = product(backend, dtype, raw, x, ids), product(backend, dtype, raw, x, ids, by_ggml=True)
    # ggml adds in another order, and may round an activation that lies between two steps to the other one.
    lengths = np.linalg.norm(values_of(dtype, raw.reshape(8 * 48, -1)).reshape(8, 48, -1), axis=2)[ids]
    assert (np.abs(ours - theirs) <= 2e-4 * lengths * np.linalg.norm(x, axis=2)[:, :, None]).all()


@pytest.mark.parametrize("tokens", [1, 3])
def test_products_share_what_they_can(backend: Backend, tokens: int) -> None:
    """Gate and up take the same activations; down sorts by the same ids. A compute later all is made anew."""
    with Storage(backend, 3) as storage, Context(backend) as ctx:
        gate, up, down = storage.add("g", "q8_0", (64, 32, 4)), storage.add("u", "q8_0", (64, 32, 4)), \
            storage.add("d", "q8_0", (32, 64, 4))  # fmt: skip
        storage.allocate(0)
        for weight in (gate, up, down):
            weight.set_bytes(raw_experts("q8_0", 4, weight.dim(1), weight.dim(0)))
        x, ids = ctx.input("f32", (64, 1, tokens)), ctx.input("i32", (2, tokens))
        y = ops.mul_mat_id_small_batch(gate, x, ids) * ops.mul_mat_id_small_batch(up, x, ids)
        ctx.forward(ops.mul_mat_id_small_batch(down, y, ids))
        assert ctx.n_nodes == 1 + 2 + 3 + 1  # a plan, two roundings, three products, "*"
        z = ops.mul_mat_id(down, ops.mul_mat_id(gate, x, ids) * ops.mul_mat_id(up, x, ids), ids)
        out = ops.mul_mat_id_small_batch(down, y, ids)
        ctx.forward(z, out)
        ctx.alloc()
        for _ in range(3):
            x.set(RNG.normal(0, 1e-3, (tokens, 1, 64)).astype(np.float32))  # or products of products leave f16
            ids.set(routes(tokens, 2, 4))
            ctx.compute()
            close = np.abs(out.numpy() - z.numpy()) <= 1e-3 * np.abs(z.numpy()).max()
            assert close.all()


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_kernels_share_activations_of_one_layout_only(
    backend: Backend, dtype: str, record_property: RecordProperty
) -> None:
    """Experts too small for vectors beside large ones, in both orders, and each instruction set beside the others."""
    k = 4 * block_of(dtype)  # of whole fours, so that a row alone has a layout of its own
    large, small = raw_experts(dtype, 4, 32, k), raw_experts(dtype, 4, 8, k)
    x, ids = RNG.normal(0, 1, (2, 1, k)).astype(np.float32), np.array([[0, 1], [2, 3]], np.int32)
    names = (None, *every_set(dtype, record_property))
    expected = {m: product(backend, dtype, raw, x, ids, "scalar").tobytes() for m, raw in ((32, large), (8, small))}
    for first in names:
        with Storage(backend, 2) as storage, Context(backend) as ctx:
            weights = [storage.add("large", dtype, (k, 32, 4)), storage.add("small", dtype, (k, 8, 4))]
            storage.allocate(0)
            weights[0].set_bytes(large)
            weights[1].set_bytes(small)
            b, i = ctx.from_floats(x), ctx.from_ints(ids)
            order = [(weights[0], first), (weights[1], None), *[(weights[0], name) for name in names]]
            results = [ops.mul_mat_id_small_batch(weight, b, i, name) for weight, name in order]
            ctx.forward(*results)
            ctx.compute()
            for y, (_, name) in zip(results, order, strict=True):
                assert y.numpy().tobytes() == expected[y.dim(0)], (first, name)


def test_types_share_activations_of_one_layout_only(backend: Backend) -> None:
    """With AVX-512 a row alone lies for Q3_K otherwise than for Q4_K."""
    raws = [(dtype, raw_experts(dtype, 4, 32, 1024)) for dtype in ("q4_K", "q3_K", "q6_K")]
    x, ids = RNG.normal(0, 1, (2, 1, 1024)).astype(np.float32), np.array([[0, 1], [2, 3]], np.int32)
    with Storage(backend, len(raws)) as storage, Context(backend) as ctx:
        weights = [storage.add(dtype, dtype, (1024, 32, 4)) for dtype, _ in raws]
        storage.allocate(0)
        for weight, (_, raw) in zip(weights, raws, strict=True):
            weight.set_bytes(raw)
        b, i = ctx.from_floats(x), ctx.from_ints(ids)
        results = [ops.mul_mat_id_small_batch(weight, b, i) for weight in weights]
        ctx.forward(*results)
        ctx.compute()
        got = [y.numpy().tobytes() for y in results]
    assert got == [product(backend, dtype, raw, x, ids, None).tobytes() for dtype, raw in raws]


def test_strides(backend: Backend) -> None:
    """Values and ids may be windows of something larger."""
    raw = raw_experts("q4_0", 4, 20, 64)
    x, ids = RNG.normal(0, 1, (3, 2, 100)).astype(np.float32), np.hstack([routes(3, 2, 4)] * 3)
    with Storage(backend, 1) as storage, Context(backend) as ctx:
        weight = storage.add("w", "q4_0", (64, 20, 4))
        storage.allocate(0)
        weight.set_bytes(raw)
        b = ops.view(ctx.from_floats(x), (64, 2, 3), (400, 800), 16)
        y = ops.mul_mat_id_small_batch(weight, b, ops.view(ctx.from_ints(ids), (2, 3), (24,), 4))
        ctx.forward(y)
        ctx.compute()
        got = y.numpy()
    expected = product(backend, "q4_0", raw, np.ascontiguousarray(x[:, :, 4:68]), np.ascontiguousarray(ids[:, 1:3]))
    assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("bad", [4, -1, 1 << 30, -(1 << 31)])
def test_ids_are_checked(backend: Backend, bad: int) -> None:
    with Context(backend) as ctx:
        ids = ctx.input("i32", (2, 1))
        y = ops.mul_mat_id_small_batch(ctx.zeros("q8_0", (32, 16, 4)), ctx.zeros("f32", (32, 1, 1)), ids)
        ctx.forward(y)
        ctx.alloc()
        ids.set(np.array([[0, bad]], np.int32))
        with pytest.raises(ShapeError, match="row numbers are 0 to 3"):
            ctx.compute()
        ids.set(np.array([[0, 3]], np.int32))
        ctx.compute()


def test_ids_of_top_k(backend: Backend) -> None:
    """Computed ids are fine where they cannot be wrong; NaN and infinities are sorted too."""
    raw = raw_experts("q8_0", 4, 16, 32)
    with Storage(backend, 1) as storage, Context(backend) as ctx:
        weight = storage.add("w", "q8_0", (32, 16, 4))
        storage.allocate(0)
        weight.set_bytes(raw)
        scores = ctx.from_floats(np.array([[1, 3, 2, 0], [np.nan] * 4, [np.inf, -np.inf, 0, np.nan]], np.float32))
        x = RNG.normal(0, 1, (3, 1, 32)).astype(np.float32)
        y = ops.mul_mat_id_small_batch(weight, ctx.from_floats(x), ops.top_k(scores, 2))
        with pytest.raises(ShapeError, match="cannot select among 4 rows"):
            ops.mul_mat_id_small_batch(weight, ctx.from_floats(x), ops.top_k(ctx.zeros("f32", (5, 3)), 2))
        ctx.forward(y)
        ctx.compute()
        got = y.numpy()
    np.testing.assert_array_equal(got[0], product(backend, "q8_0", raw, x[:1], np.array([[1, 2]], np.int32))[0])


def test_infinity_spoils_its_rows_only(backend: Backend) -> None:
    raw, ids = raw_experts("q4_K", 3, 20, 512), np.array([[0, 1], [1, 2], [0, 1]], np.int32)
    x = RNG.normal(0, 1, (3, 1, 512)).astype(np.float32)
    clean = product(backend, "q4_K", raw, x, ids)
    x[1, 0, 300] = np.inf
    out = product(backend, "q4_K", raw, x, ids)
    assert not np.isfinite(out[1]).any()
    assert out[[0, 2]].tobytes() == clean[[0, 2]].tobytes()


def test_what_it_can_read(backend: Backend, ctx: Context) -> None:
    """Only for experts that lie in the CPU's memory as in the file."""
    with Storage(backend, 2) as storage, Storage(backend, 1) as repacked:
        weight, other = storage.add("w", "q4_0", (256, 32, 2)), storage.add("f", "f32", (256, 32, 2))
        assert not reads_in_place(weight)
        storage.allocate(0)
        assert reads_in_place(weight)
        assert not reads_in_place(other)
        assert not reads_in_place(ops.cast(ctx.input("f32", (256, 32, 2)), "q4_0"))
        if can_repack(backend, "q4_0", (256, 32, 2)):
            copy = repacked.add("w", "q4_0", (256, 32, 2))
            repacked.allocate_repacked()
            assert not reads_in_place(copy)
            with pytest.raises(ShapeError, match="repacked"):
                ops.mul_mat_id_small_batch(copy, ctx.input("f32", (256, 1, 2)), ctx.input("i32", (2, 2)))


def f32(c: Context, *shape: int) -> Tensor:
    return c.input("f32", shape)


def i32(c: Context, *shape: int) -> Tensor:
    return c.input("i32", shape)


REFUSALS: list[tuple[str, Any, str]] = [
    ("no such kernel", lambda c, w: ops.mul_mat_id_small_batch(c.zeros("iq1_s", (256, 4, 3)), f32(c, 256, 1, 2),
                                                             i32(c, 2, 2)), "must be q4_K"),
    *((f"experts of {dtype}", lambda c, w, dtype=dtype: ops.mul_mat_id_small_batch(
        c.zeros(dtype, (40, 4, 3)), f32(c, 40, 1, 2), i32(c, 2, 2)),
       f"mul_mat_id_small_batch: the weight must be q4_K, .* or mxfp4, got .*{dtype}.*; use mul_mat_id$")
      for dtype in ("f16", "bf16", "f32")),
    ("unknown variant", lambda c, w: ops.mul_mat_id_small_batch(w, f32(c, 256, 1, 2), i32(c, 2, 2), None, "l3"),
     "no variant 'l3'; there are"),
    ("unknown set", lambda c, w: ops.mul_mat_id_small_batch(w, f32(c, 256, 1, 2), i32(c, 2, 2), "mmx"),
     "no 'mmx' kernel"),
    ("other length", lambda c, w: ops.mul_mat_id_small_batch(w, f32(c, 512, 1, 2), i32(c, 2, 2)), "do not fit"),
    ("other tokens", lambda c, w: ops.mul_mat_id_small_batch(w, f32(c, 256, 1, 3), i32(c, 2, 2)),
     r"expected values \[256, 2"),
    ("other rows", lambda c, w: ops.mul_mat_id_small_batch(w, f32(c, 256, 3, 2), i32(c, 2, 2)), "do not fit"),
    ("values in 4D", lambda c, w: ops.mul_mat_id_small_batch(w, f32(c, 256, 1, 2, 2), i32(c, 2, 2)),
     "up to 3 dimensions"),
    ("ids in 3D", lambda c, w: ops.mul_mat_id_small_batch(w, f32(c, 256, 1, 2), i32(c, 2, 2, 2)), "ids 2"),
    ("ids of floats", lambda c, w: ops.mul_mat_id_small_batch(w, f32(c, 256, 1, 2), f32(c, 2, 2)), "ids must be i32"),
    ("values of f16", lambda c, w: ops.mul_mat_id_small_batch(w, c.input("f16", (256, 1, 2)), i32(c, 2, 2)),
     "must be f32"),
    ("values turned", lambda c, w: ops.mul_mat_id_small_batch(
        w, ops.permute(f32(c, 2, 256, 2), 1, 0, 2, 3), i32(c, 2, 2)), "contiguous rows"),
    ("ids turned", lambda c, w: ops.mul_mat_id_small_batch(w, f32(c, 256, 1, 2), ops.transpose(i32(c, 2, 2))),
     "ids must be i32 with contiguous rows"),
    ("every other expert", lambda c, w: ops.mul_mat_id_small_batch(
        ops.view(w, (256, 4, 2), (w.stride(1), 2 * w.stride(2)), 0), f32(c, 256, 1, 2), i32(c, 2, 2)),
     "must be contiguous"),
    ("too many ids", lambda c, w: ops.mul_mat_id_small_batch(w, f32(c, 256, 1, 1 << 21), i32(c, 4, 1 << 21)),
     "more than 4194304"),
    ("computed ids", lambda c, w: ops.mul_mat_id_small_batch(
        w, f32(c, 256, 1, 1), ops.get_rows(c.from_ints([[1, 2]]), c.from_ints([0]))), "row numbers must be an input"),
]  # fmt: skip


@pytest.mark.parametrize(("attempt", "message"), [c[1:] for c in REFUSALS], ids=[c[0] for c in REFUSALS])
def test_refusals(ctx: Context, attempt: Any, message: str) -> None:
    weight: Tensor = ctx.zeros("q4_K", (256, 4, 3))
    with pytest.raises(ShapeError, match=message):
        attempt(ctx, weight)
