"""mul_mat_small_batch: against numpy in exact arithmetic, against ggml's own product, and against itself bit by bit."""

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
from ollama_engine.ml.ops.small_batch import (
    SMALL_BATCH_VARIANTS,
    mul_mats_small_batch,
    reads_in_place,
    small_batch_instructions,
)
from tests.ml.ops.small_batch_weights import (
    FLOAT_KERNELS,
    FLOATS,
    KERNELS,
    QUANTIZED,
    QUANTIZED_KERNELS,
    TYPES,
    Bytes,
    Floats,
    block_of,
    every_set,
    kernels,
    raw_blocks,
    raw_weights,
    rounded,
    values_of,
)
from tests.support.instruction_sets import FLOAT_PRODUCTS, PRODUCTS, X86, RecordProperty
from tests.support.suite import scaled, slow_except

RNG = np.random.default_rng(20_260_102)
SMALLEST = np.finfo(np.float32).smallest_normal


def product(backend: Backend, dtype: str, raw: Bytes, x: Floats, name: str | None, *, variant: str = "spread",
            by_ggml: bool = False) -> Floats:  # fmt: skip
    """The result of mul_mat_small_batch, or of ggml's mul_mat on the weights as they are."""
    k = x.shape[1]
    with Storage(backend, 1) as storage, Context(backend) as ctx:
        weight = storage.add("w", dtype, (k, len(raw)))
        storage.allocate(0)
        weight.set_bytes(raw)
        b = ctx.from_floats(x)
        y = ops.mul_mat(weight, b) if by_ggml else ops.mul_mat_small_batch(weight, b, name, variant)
        ctx.forward(y)
        ctx.compute()
        out: Floats = y.numpy()
        return out.reshape(len(x), len(raw))


@pytest.fixture(scope="module")
def one_thread() -> Iterator[Backend]:
    with Backend(BackendParams(threads=1), max_nodes=64) as backend:
        yield backend


def test_the_scalar_kernel_is_always_there() -> None:
    assert all(small_batch_instructions(dtype)[0] == "scalar" for dtype in TYPES)
    assert all(set(small_batch_instructions(dtype)) <= set(PRODUCTS) for dtype in QUANTIZED)
    assert all(set(small_batch_instructions(dtype)) <= set(FLOAT_PRODUCTS) for dtype in FLOATS)
    assert small_batch_instructions("iq1_s") == ()
    assert small_batch_instructions("f32") == ()


def close_to_numpy(backend: Backend, dtype: str, name: str, k: int, m: int) -> bool:
    raw, x = raw_weights(dtype, m, k), RNG.normal(0, 3, (5, k)).astype(np.float32)
    weights, acts = values_of(dtype, raw), rounded(dtype, x)
    sizes = np.abs(acts) @ np.abs(weights).T
    return bool((np.abs(product(backend, dtype, raw, x, name) - acts @ weights.T) <= 2e-6 * sizes + 1e-6).all())


@pytest.mark.parametrize(("dtype", "name"), kernels(KERNELS))
@pytest.mark.parametrize(("k", "m"), slow_except([(256, 1), (256, 16), (512, 37), (2048, 64), (768, 100)], (512, 37)))
def test_against_numpy(backend: Backend, dtype: str, name: str, k: int, m: int) -> None:
    assert close_to_numpy(backend, dtype, name, k, m)


FEW_BLOCKS = [(d, n, k) for d, n in KERNELS if block_of(d) < 256 for k in (32, 96, 896)]
FEW_BLOCKS += [(d, n, k) for d, n in FLOAT_KERNELS for k in (16, 80)]


@pytest.mark.parametrize(("dtype", "name", "k"), kernels(FEW_BLOCKS))
def test_rows_of_few_blocks(backend: Backend, dtype: str, name: str, k: int) -> None:
    assert close_to_numpy(backend, dtype, name, k, 18)


@pytest.mark.parametrize("dtype", TYPES)
def test_every_number_of_rows_gives_the_same_bits(
    backend: Backend, one_thread: Backend, dtype: str, record_property: RecordProperty
) -> None:
    """A row does not see the others, nor how many threads there are, nor the instruction set."""
    raw = raw_weights(dtype, 53, 512)
    x = RNG.normal(0, 1, (33, 512)).astype(np.float32)
    expected = product(one_thread, dtype, raw, x, "scalar")
    for name in every_set(dtype, record_property):
        for rows in scaled(range(1, 34), quick=(1, 2, 3, 7, 33)):
            for threads in (backend, one_thread):
                assert product(threads, dtype, raw, x[:rows], name).tobytes() == expected[:rows].tobytes(), (name, rows)


@pytest.mark.parametrize("blocks", [5, 15])  # a third, and a fifteenth of the blocks' fours are missing
@pytest.mark.parametrize("dtype", TYPES)
def test_every_variant_gives_the_same_bits(
    backend: Backend, one_thread: Backend, dtype: str, blocks: int, record_property: RecordProperty
) -> None:
    """However weights are fetched, and from however many places: also where the blocks fill no four of them, beside a
    row of NaN, and where the second half of a thread's rows is shorter than the first."""
    k = blocks * (16 if dtype in FLOATS else block_of(dtype))
    raw, x = raw_weights(dtype, 101, k), RNG.normal(0, 1, (9, k)).astype(np.float32)
    raw[50], others = 255, np.arange(101) != 50
    expected = product(one_thread, dtype, raw, x, "scalar")[:, others]
    for name in every_set(dtype, record_property):
        for variant in SMALL_BATCH_VARIANTS:
            for rows in (1, 2, 8, 9):
                for threads in (backend, one_thread):
                    got = product(threads, dtype, raw, x[:rows], name, variant=variant)
                    assert got[:, others].tobytes() == expected[:rows].tobytes(), (name, variant, rows)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("rows", "blocks"), slow_except([(20, 1), (21, 3), (37, 2), (48, 5), (300, 4), (65, 40)], (21, 3), (37, 2))
)
def test_many_rows_give_the_same_bits(
    backend: Backend, dtype: str, rows: int, blocks: int, record_property: RecordProperty
) -> None:
    """Also where the last rows fill no tile, and the blocks no step of tiles."""
    k = blocks * (80 if dtype in FLOATS else block_of(dtype))
    raw = raw_weights(dtype, 53, k)
    x = RNG.normal(0, 1, (rows, k)).astype(np.float32)
    x[0], x[-1] = 1.0, -1.0  # the largest sums: 16 products of Q6_K have no room in 16 bits
    expected = np.concatenate([product(backend, dtype, raw, row, "scalar") for row in np.array_split(x, rows // 8)])
    for name in every_set(dtype, record_property):
        assert product(backend, dtype, raw, x, name).tobytes() == expected.tobytes(), name


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", slow_except([1, 2, 7, 16, 33], 1, 7, 33))
def test_against_ggml(backend: Backend, dtype: str, rows: int) -> None:
    raw = raw_weights(dtype, 48, 1024)
    x = RNG.normal(0, 1, (rows, 1024)).astype(np.float32)
    ours, theirs = product(backend, dtype, raw, x, None), product(backend, dtype, raw, x, None, by_ggml=True)
    # ggml adds in another order, and may round an activation that lies between two steps to the other one.
    sizes = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(values_of(dtype, raw), axis=1)[None]
    assert (np.abs(ours - theirs) <= 2e-4 * sizes).all()


@pytest.mark.parametrize(("dtype", "name"), kernels(QUANTIZED_KERNELS))
@pytest.mark.parametrize("size", slow_except([0.0, 1e-45, 1e-41, 1e-38, 1e-30, 1e30], 1e-41, 1e30))
def test_extreme_activations(backend: Backend, dtype: str, name: str, size: float) -> None:
    """All results are what ggml gives: 0 where nothing is left of the activations, and no NaN out of numbers."""
    raw = raw_weights(dtype, 20, 256)
    x = (RNG.normal(0, 1, (4, 256)) * size).astype(np.float32)
    x[1, 1:] = 0
    ours, theirs = product(backend, dtype, raw, x, name), product(backend, dtype, raw, x, None, by_ggml=True)
    np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(theirs))
    finite = np.isfinite(theirs)
    np.testing.assert_allclose(ours[finite], theirs[finite], rtol=2e-2, atol=max(1e-30, 2e-2 * size * 256))


@pytest.mark.parametrize("rows", [1, 3, 24])
def test_every_power_of_mxfp4(backend: Backend, rows: int, record_property: RecordProperty) -> None:
    """Each of the 256 exponents of a block, of which two give subnormal factors, at each place within four blocks."""
    raw = raw_weights("mxfp4", 1024, 128)
    raw.reshape(-1, 17)[:, 0] = np.arange(4096) * 5
    x = RNG.normal(0, 1e4, (rows, 128)).astype(np.float32)
    expected = product(backend, "mxfp4", raw, x, "scalar")
    assert (expected != 0).mean() > 0.9
    for name in every_set("mxfp4", record_property):
        assert product(backend, "mxfp4", raw, x, name).tobytes() == expected.tobytes(), name


@pytest.mark.parametrize(("dtype", "name"), kernels(FLOAT_KERNELS))
@pytest.mark.parametrize("rows", [1, 5])
def test_every_16_bits(backend: Backend, dtype: str, name: str, rows: int) -> None:
    """Each pattern of bits as the only weight that counts: infinite, NaN and, for F16, subnormal as numpy has them."""
    patterns = np.arange(1 << 16, dtype=np.uint16)
    raw = np.zeros((1 << 16, 16), np.uint16)
    raw[:, 5] = patterns
    x = np.zeros((rows, 16), np.float32)
    x[:, 5] = 0.5
    with np.errstate(invalid="ignore"):
        weights = patterns.view(np.float16).astype(np.float32) if dtype == "f16" else _bf16(patterns)
        expected = weights * np.float32(0.5)
    if dtype == "bf16" and X86:  # VDPBF16PS takes what is too small for 0
        expected[np.abs(weights) < SMALLEST] = 0
        expected[np.abs(expected) < SMALLEST] = 0
    ours = product(backend, dtype, raw.view(np.uint8), x, name)
    np.testing.assert_array_equal(ours, np.tile(expected, (rows, 1)))


def _bf16(patterns: NDArray[np.uint16]) -> Floats:
    return (patterns.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize(("dtype", "name"), kernels(QUANTIZED_KERNELS))
@pytest.mark.parametrize("rows", [1, 2, 3, 66])
def test_largest_codes_do_not_overflow(backend: Backend, dtype: str, name: str, rows: int) -> None:
    """Every bit of a weight's codes and scales set, activations at the end of their range, in both signs."""
    for fill in (0x00, 0x7F, 0x80, 0xFF):
        raw = raw_blocks(dtype, 16, 1024, fill, np.array([0.01], np.float16))
        weights = values_of(dtype, raw)
        x = np.ones((3, 1024), np.float32)
        x[1], x[2, ::2] = -1, -1
        tol = 3e-6 * np.abs(weights).sum(1) + 1e-5
        for part in np.tile(x, (22, 1))[: max(rows, 6)].reshape(-1, rows, 1024):
            # 1/127 is no f16: in blocks of 32 the step is rounded.
            expected = rounded(dtype, part) @ weights.T
            assert (np.abs(product(backend, dtype, raw, part, name) - expected) <= tol).all(), hex(fill)


@pytest.mark.parametrize(("dtype", "name"), kernels(QUANTIZED_KERNELS))
@pytest.mark.parametrize("rows", slow_except([1, 2, 8, 256], 2, 256))
def test_every_code_at_its_place(backend: Backend, dtype: str, name: str, rows: int) -> None:
    """Rows of activations that see one weight each, and factors of few bits: every result is exact."""
    factors = (np.arange(-31, 32) / 64).astype(np.float16)
    raw = raw_blocks(dtype, 77, 256, None, factors)
    x = np.eye(256, dtype=np.float32) * 127
    for part in x.reshape(-1, rows, 256)[:: 7 if rows <= 2 else 1]:
        expected = part.astype(np.float64) @ values_of(dtype, raw).T
        np.testing.assert_array_equal(product(backend, dtype, raw, part, name), expected)


def spoiled_row(backend: Backend, dtype: str, name: str, value: float) -> Floats:
    """The products of a row that has the value in it. Those of the rows before and behind it are what they were."""
    raw = raw_weights(dtype, 20, 512)
    x = RNG.normal(0, 1, (3, 512)).astype(np.float32)
    clean = product(backend, dtype, raw, x, name)
    x[1, 300] = value
    out = product(backend, dtype, raw, x, name)
    assert out[[0, 2]].tobytes() == clean[[0, 2]].tobytes()
    return out[1]


@pytest.mark.parametrize(("dtype", "name"), kernels(KERNELS))
def test_infinity_spoils_its_row_only(backend: Backend, dtype: str, name: str) -> None:
    assert not np.isfinite(spoiled_row(backend, dtype, name, np.inf)).any()


@pytest.mark.parametrize(("dtype", "name"), kernels(FLOAT_KERNELS))
def test_nan_spoils_its_row_only(backend: Backend, dtype: str, name: str) -> None:
    """(Quantizing makes a number of a NaN, as ggml's does.)"""
    assert np.isnan(spoiled_row(backend, dtype, name, np.nan)).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_activations_may_be_a_window(backend: Backend, dtype: str) -> None:
    raw = raw_weights(dtype, 32, 256)
    wide = RNG.normal(0, 1, (6, 300)).astype(np.float32)
    with Storage(backend, 1) as storage, Context(backend) as ctx:
        weight = storage.add("w", dtype, (256, 32))
        storage.allocate(0)
        weight.set_bytes(raw)
        part = ops.view(ctx.from_floats(wide), (256, 6), (1200,), 16)
        y = ops.mul_mat_small_batch(weight, part)
        ctx.forward(y)
        ctx.compute()
        got = y.numpy()
    assert got.tobytes() == product(backend, dtype, raw, np.ascontiguousarray(wide[:, 4:260]), None).tobytes()


IN_WHOLE_BLOCKS = ("q4_K", "q5_K", "q6_K", "iq4_xs")
"""Types whose codes AVX-512 multiplies as they lie (whole_blocks.h)."""


@pytest.mark.parametrize(("rows", "k"), [(1, 768), (1, 1024), (3, 1024)])
@pytest.mark.parametrize("dtype", TYPES)
def test_products_share_activations(backend: Backend, dtype: str, rows: int, k: int) -> None:
    """Products of the same values round them once, for each form in which kernels take them, and give the same bits.
    Three blocks of 256 are taken by fours only where the missing one takes no time: else a quarter of the work would be
    for nothing."""
    many, few = raw_weights(dtype, 48, k), raw_weights(dtype, 5, k)
    x = RNG.normal(0, 1, (rows, k)).astype(np.float32)
    with Storage(backend, 2) as storage, Context(backend) as ctx:
        weights = [storage.add("many", dtype, (k, 48)), storage.add("few", dtype, (k, 5))]
        storage.allocate(0)
        weights[0].set_bytes(many)
        weights[1].set_bytes(few)
        b = ctx.from_floats(x)
        products = [ops.mul_mat_small_batch(w, b) for w in (*weights, weights[0])]
        ctx.forward(*products)
        best = small_batch_instructions(dtype)[-1]
        by_fours = best != "scalar" if rows == 1 else best in ("avx512", "amx") and block_of(dtype) == 32
        fill = k == 1024 or block_of(dtype) == 32 or (dtype in IN_WHOLE_BLOCKS and best in ("avx512", "amx"))
        assert ctx.n_nodes == len(products) + 1 + (by_fours and fill and dtype in QUANTIZED)
        ctx.compute()
        got = [y.numpy().tobytes() for y in products]
    expected = [product(backend, dtype, raw, x, None).tobytes() for raw in (many, few)]
    assert got == [*expected, expected[0]]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_products_of_one_operation_have_the_bits_of_each_alone(rows: int, threads: int) -> None:
    """Of several types and sizes, more than fit one operation; those with blocks of 32 round activations otherwise,
    and with AVX-512 a row alone lies otherwise for Q3_K."""
    kinds = [("q6_K", 100), ("q4_K", 16), ("q8_0", 33), ("q4_K", 5), ("f16", 20), ("q3_K", 18)]
    kinds += [("q5_K", 16 + i) for i in range(8)]
    x, raws = RNG.standard_normal((rows, 1024)).astype(np.float32), [raw_weights(kind, m, 1024) for kind, m in kinds]
    with (
        Backend(BackendParams(threads=threads), max_nodes=128) as backend,
        Storage(backend, len(kinds)) as storage,
        Context(backend) as ctx,
    ):
        weights = [storage.add(f"w{i}", kind, (1024, m)) for i, (kind, m) in enumerate(kinds)]
        storage.allocate(0)
        for weight, raw in zip(weights, raws, strict=True):
            weight.set_bytes(raw)
        results = mul_mats_small_batch(weights, ctx.from_floats(x), ["spread"] * len(kinds))
        ctx.forward(*results)
        if rows == 3:
            assert ctx.n_nodes == 3 + 4 + 12, "three forms of activations, four operations, twelve views"
        ctx.compute()
        got = [result.numpy().tobytes() for result in results]
    with Backend(BackendParams(threads=1), max_nodes=64) as backend:
        for (kind, m), raw, bits in zip(kinds, raws, got, strict=True):
            assert bits == product(backend, kind, raw, x, None).tobytes(), (kind, m)


def test_few_rows_are_not_packed_for_tiles(backend: Backend) -> None:
    """The activations of a row take 34 times the memory when they are packed, and nothing would read them."""
    sizes = []
    for name in (None, next(n for n in ("avx512", "scalar") if n in small_batch_instructions("q4_0"))):
        with Storage(backend, 1) as storage, Context(backend) as ctx:
            weight = storage.add("w", "q4_0", (8192, 64))
            storage.allocate(0)
            ctx.forward(ops.mul_mat_small_batch(weight, ctx.input("f32", (8192, 1)), name))
            sizes.append(ctx.measure()["CPU"])
    assert sizes[0] == sizes[1]


def test_what_it_can_read(backend: Backend, ctx: Context) -> None:
    """Only for weights that lie in the CPU's memory as in the file."""
    with Storage(backend, 3) as storage, Storage(backend, 1) as repacked:
        weight, other = storage.add("w", "q4_0", (256, 32)), storage.add("f", "f32", (256, 32))
        odd = storage.add("o", "f16", (24, 32))
        assert not reads_in_place(weight)
        storage.allocate(0)
        assert reads_in_place(weight)
        assert not reads_in_place(other)
        assert not reads_in_place(odd)
        assert not reads_in_place(ops.cast(ctx.input("f32", (256, 32)), "q4_0"))
        if can_repack(backend, "q4_0", (256, 32)):
            copy = repacked.add("w", "q4_0", (256, 32))
            repacked.allocate_repacked()
            assert not reads_in_place(copy)
            with pytest.raises(ShapeError, match="repacked"):
                ops.mul_mat_small_batch(copy, ctx.input("f32", (256, 2)))


REFUSALS: list[tuple[str, Any, str]] = [
    ("no such kernel", lambda c, w, x: ops.mul_mat_small_batch(c.zeros("iq1_s", (256, 4)), x), "must be q4_K"),
    ("floats", lambda c, w, x: ops.mul_mat_small_batch(x, x), "must be q4_K"),
    ("odd rows", lambda c, w, x: ops.mul_mat_small_batch(c.zeros("f16", (24, 4)), c.zeros("f32", (24, 2))),
     "multiple of 16"),
    ("other length", lambda c, w, x: ops.mul_mat_small_batch(w, c.zeros("f32", (512, 2))), "do not fit"),
    ("three dimensions", lambda c, w, x: ops.mul_mat_small_batch(w, c.zeros("f32", (256, 2, 2))),
     "use mul_mat for more"),
    ("many weights", lambda c, w, x: ops.mul_mat_small_batch(c.zeros("q8_0", (256, 2, 2)), x), "use mul_mat for more"),
    ("f16 values", lambda c, w, x: ops.mul_mat_small_batch(w, c.zeros("f16", (256, 2))), "must be f32"),
    ("turned", lambda c, w, x: ops.mul_mat_small_batch(w, ops.transpose(c.zeros("f32", (2, 256)))), "contiguous rows"),
    ("unknown set", lambda c, w, x: ops.mul_mat_small_batch(w, x, "mmx"), "no 'mmx' kernel"),
    ("unknown variant", lambda c, w, x: ops.mul_mat_small_batch(w, x, None, "l3"), "no variant 'l3'; there are"),
    ("2**31 values", lambda c, w, x: ops.mul_mat_small_batch(w, c.input("f32", (256, 1 << 30))), "2\\*\\*31"),
]  # fmt: skip


@pytest.mark.parametrize(("attempt", "message"), [c[1:] for c in REFUSALS], ids=[c[0] for c in REFUSALS])
def test_refusals(ctx: Context, attempt: Any, message: str) -> None:
    weight: Tensor = ctx.zeros("q4_K", (256, 4))
    with pytest.raises(ShapeError, match=message):
        attempt(ctx, weight, ctx.zeros("f32", (256, 2)))
