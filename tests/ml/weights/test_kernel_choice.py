"""Which kernel a product asks for: the borders of docs/performance-history.md, seen by the operations in the graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.ops.small_batch import SMALL_BATCH_QUANTIZED, cpu_traits, small_batch_instructions
from ollama_engine.ml.weights import kernel_choice
from ollama_engine.ml.weights.kernel_choice import (
    ALL,
    BY_TABLE,
    GGML,
    LONG,
    REPACKED_ROWS,
    ROWS_OF_F32_ALIKE,
    TABLE,
    THIS_CPU,
    Borders,
    KernelChoice,
    choice_by_table,
    choose_copy,
    expert_product,
    kernels_of,
    kind_of_cpu,
    product,
)
from ollama_engine.ml.weights.kernel_variants import FewRows, start_variants
from ollama_engine.ml.weights.quantize import quantize_rows

TYPES = sorted({dtype for borders in TABLE.values() for dtype in borders})


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    with Backend(BackendParams(threads=1), max_nodes=64) as one_thread:
        yield one_thread


def operations(backend: Backend, dtype: str, *shape: int) -> int:
    """Operations of a product with values of this shape: mul_mat is one, mul_mat_small_batch two."""
    with Storage(backend, 1) as storage, Context(backend) as ctx:
        weight = storage.add("w", dtype, (256, 32))
        storage.allocate(0)
        y = product(weight, ctx.input("f32", (256, *shape)))
        assert y.shape == tuple([32, *shape] if shape[-1] > 1 else [32, *shape[:-1]])
        ctx.forward(y)
        return ctx.n_nodes


def expert_operations(backend: Backend, dtype: str, tokens: int) -> int:
    """Operations of a product of 2 experts, both of which each token uses: mul_mat_id is one, ours three."""
    with Storage(backend, 1) as storage, Context(backend) as ctx:
        experts = storage.add("w", dtype, (256, 32, 2))
        storage.allocate(0)
        y = expert_product(experts, ctx.input("f32", (256, 1, tokens)), ctx.input("i32", (2, tokens)))
        assert y.shape == (32, 2, tokens) if tokens > 1 else (32, 2)
        ctx.forward(y)
        return ctx.n_nodes


def test_the_kind_of_a_cpu() -> None:
    old = {"avx2"}
    assert kind_of_cpu(()) == ""
    assert kind_of_cpu(old) == "avx2"
    assert kind_of_cpu(old | {"avxvnni", "intel"}) == "avxvnni"
    assert kind_of_cpu(old | {"avx512"}) == kind_of_cpu(old | {"avx512", "intel"}) == "avx512"
    assert kind_of_cpu(old | {"avx512", "avx512vnni"}) == "avx512vnni"
    assert kind_of_cpu(old | {"avx512", "avx512vnni", "intel"}) == "avx512vnni-intel"
    assert kind_of_cpu(cpu_traits()) == THIS_CPU
    assert {"", *TABLE} >= {THIS_CPU}


@pytest.mark.parametrize("cpu", TABLE)
def test_every_entry_has_a_kernel(cpu: str) -> None:
    for dtype, borders in TABLE[cpu].items():
        assert 1 <= borders.first <= borders.last, dtype
        assert borders.per_expert == 0 or dtype in SMALL_BATCH_QUANTIZED, "there are no kernels for other experts"
        if cpu == THIS_CPU:
            assert len(small_batch_instructions(dtype)) > 1, dtype


@pytest.mark.parametrize("dtype", TYPES)
def test_small_batches_go_to_our_kernels(backend: Backend, dtype: str) -> None:
    rows = BY_TABLE.rows(dtype, 256)
    for n in {1, 2, rows.start, *((rows.stop - 1, rows.stop) if rows.stop < 600 else (600,))} - {-1, 0}:
        assert (operations(backend, dtype, n) == 2) == (n in rows), n


EXACT = [*["f32"] * ROWS_OF_F32_ALIKE, *(t for t in TYPES if {1, 600} <= set(BY_TABLE.rows(t, 256)))]


@pytest.mark.parametrize("dtype", EXACT)
def test_a_row_has_the_same_bits_in_any_batch(backend: Backend, dtype: str) -> None:
    rng = np.random.default_rng(20_261_122)
    weights, x = (rng.normal(0, 1, (n, 512)).astype(np.float32) for n in (40, 130))
    found = {}
    with Storage(backend, 1) as storage:
        weight = storage.add("w", dtype, (512, 40))
        storage.allocate(0)
        raw = np.empty(weight.nbytes, np.uint8)
        if dtype == "f32":
            raw = weights.view(np.uint8).reshape(-1)
        else:
            quantize_rows(dtype, weights, raw)
        weight.set_bytes(raw)
        for rows in (1, 2, 3, 7, 8, 33, 65, 130):
            with Context(backend) as ctx:
                y = product(weight, ctx.from_floats(x[:rows]))
                ctx.forward(y)
                ctx.compute()
                found[rows] = y.numpy().reshape(rows, 40).copy()
    assert [rows for rows, values in found.items() if values.tobytes() != found[130][:rows].tobytes()] == []


@pytest.mark.parametrize("dtype", TYPES)
def test_experts_with_few_rows_go_to_our_kernels(backend: Backend, dtype: str) -> None:
    most = BY_TABLE.rows_per_expert(dtype)
    chosen = {tokens: expert_operations(backend, dtype, tokens) == 3 for tokens in {1, 2, most, most + 1} - {0}}
    assert chosen == {tokens: tokens <= most for tokens in chosen}


def test_the_borders() -> None:
    zen, intel, avx2 = map(choice_by_table, ("avx512vnni", "avx512vnni-intel", "avx2"))
    assert 1 not in avx2.rows("q6_K", 4096)
    assert 2 in avx2.rows("q6_K", 4096)
    assert list(intel.rows("bf16", LONG)) == [1, 2, 3, 4]
    assert list(intel.rows("bf16", LONG + 1)) == [1]
    assert 512 in zen.rows("bf16", LONG + 1)
    assert all(512 in zen.rows(dtype, 4096) for dtype in SMALL_BATCH_QUANTIZED)
    assert {dtype for dtype in SMALL_BATCH_QUANTIZED if 512 not in intel.rows(dtype, 4096)} == {"q6_K"}
    assert not zen.rows("iq1_s", 256)
    assert not GGML.rows("q4_0", 256)
    assert GGML.rows_per_expert("q4_0") == 0
    assert avx2.rows_per_expert("q4_0") == 256
    assert {avx2.rows_per_expert(dtype) for dtype in ("q6_K", "q3_K")} == {64}
    assert choice_by_table("avxvnni").rows_per_expert("iq4_xs") == 64


def test_a_cpu_without_vnni_has_the_borders_of_avx2_where_they_were_measured_there() -> None:
    other = {dtype for dtype in TABLE["avx2"] if TABLE["avx512"][dtype] != TABLE["avx2"][dtype]}
    assert other == {"f16", "bf16", "q6_K"}
    assert max(choice_by_table("avx512").rows("q6_K", 256)) == 64
    assert {*choice_by_table("avx512").rows("f16", 256), *choice_by_table("avx512").rows("bf16", 256)} == {1, 2}


def test_other_types_and_shapes_go_to_ggml(backend: Backend) -> None:
    assert operations(backend, "f32", 4) == 1
    assert operations(backend, "iq1_s", 4) == 1
    assert operations(backend, "q8_0", 4, 3) == 1
    assert expert_operations(backend, "f16", 4) == 1
    assert expert_operations(backend, "iq1_s", 4) == 1


def test_the_repacked_copy_serves_few_rows_of_k_quants(backend: Backend) -> None:
    with Storage(backend, 1) as storage, Storage(backend, 1) as other:
        weight, copy = storage.add("w", "q5_K", (256, 32)), other.add("w", "q5_K", (256, 32))
        storage.allocate(0)
        other.allocate(0)
        weight.repacked = copy
        assert choose_copy(weight, 1) is copy
        assert choose_copy(weight, REPACKED_ROWS) is weight


def test_types_without_kernels_of_ours_want_a_repacked_copy() -> None:
    assert BY_TABLE.wants_repacked("iq1_s", experts=False)
    assert BY_TABLE.wants_repacked("iq1_s", experts=True)
    for cpu, borders in TABLE.items():
        for dtype, there in borders.items():
            assert not choice_by_table(cpu).wants_repacked(dtype, experts=False)
            assert choice_by_table(cpu).wants_repacked(dtype, experts=True) == (there.per_expert == 0)


@pytest.mark.parametrize("experts", [False, True])
def test_a_product_has_the_variant_of_its_rows(monkeypatch: pytest.MonkeyPatch, experts: bool) -> None:
    name = "mul_mat_id_small_batch" if experts else "mul_mats_small_batch"
    multiply, seen = getattr(kernel_choice, name), []

    def watched(*operands: Any) -> Any:
        seen.append(operands[-1] if experts else operands[-1][0])
        return multiply(*operands)

    monkeypatch.setattr(kernel_choice, name, watched)
    variants = {FewRows("q4_0", 1, experts): "burst", FewRows("q4_0", 4, experts): "l2"}
    kernels = KernelChoice({"q4_0": Borders(1, ALL, per_expert=256)}, variants)
    with Backend(BackendParams(threads=1), max_nodes=64, kernels=kernels) as chosen:
        for n in (1, 3, 4, 9):  # tokens take both of two experts, so n are the rows of each
            (expert_operations if experts else operations)(chosen, "q4_0", n)
    assert seen == ["burst", "burst", "l2", "l2"]


def test_what_rows_begin_with_with_avx512_vnni() -> None:
    zen_4 = {"avx2", "avx512", "avx512vnni"}
    zen_5 = start_variants(zen_4 | {"avxvnni"})
    kernels = KernelChoice({}, zen_5)
    for experts in (False, True):
        assert [kernels.variant("q4_K", n, experts=experts) for n in (1, 2)] == ["deep", "spread-rows"]
        assert [kernels.variant("q4_0", n, experts=experts) for n in (1, 2, 8)] == ["deep", "spread", "spread"]
    assert kernels.variant("f16", 1) == "spread", "was not measured"
    kernels = KernelChoice({}, start_variants(zen_4))
    for dtype in ("q4_K", "f16"):
        assert [kernels.variant(dtype, n) for n in (1, 3, 7, 8, 512)] == ["l2", "l2", "l2", "spread", "spread"]
    assert [kernels.variant("q4_K", n, experts=True) for n in (1, 8)] == ["l2", "spread"]
    assert [kernels.variant("q8_0", n) for n in (1, 2, 4, 8)] == ["l2", "l2", "l2-rows", "spread-rows"]
    for traits in (zen_4 | {"intel"}, zen_4 | {"avxvnni", "intel"}):
        kernels = KernelChoice({}, start_variants(traits))
        assert [kernels.variant("q4_K", n) for n in (1, 2)] == ["spread", "spread-rows"]
        assert [kernels.variant(dtype, n) for dtype in ("q4_0", "f16") for n in (1, 2)] == ["spread"] * 4


@pytest.mark.parametrize("traits", [{"avx2"}, {"avx2", "avxvnni"}, {"neon"}], ids=["avx2", "avxvnni", "neon"])
def test_an_unknown_cpu_begins_as_zen_4_does(traits: set[str]) -> None:
    kernels = KernelChoice({}, start_variants(traits))
    for dtype in ("q4_K", "q8_0", "bf16"):
        assert [kernels.variant(dtype, n) for n in (1, 2, 8)] == ["l2", "l2", "spread"]
    assert not start_variants({*traits, "intel"})


def test_a_backend_with_ggmls_kernels_alone(backend: Backend) -> None:
    assert kernels_of(backend) is BY_TABLE
    with Backend(BackendParams(threads=1), max_nodes=64, kernels=GGML) as plain:
        assert kernels_of(plain) is GGML
        for dtype in TYPES:
            assert [operations(plain, dtype, n) for n in (1, 2, 600)] == [1, 1, 1], dtype
            assert expert_operations(plain, dtype, 2) == 1, dtype
            assert GGML.wants_repacked(dtype, experts=False)
