"""Which kernel a linear map asks for: the borders of docs/performance.md, told by the operations in the graph."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ollama_engine.ml import kernel_choice
from ollama_engine.ml.backend import Backend
from ollama_engine.ml.context import Context
from ollama_engine.ml.ops_small_batch import small_batch_chosen, small_batch_fastest
from ollama_engine.ml.placement import BackendParams
from ollama_engine.ml.storage import Storage


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    with Backend(BackendParams(threads=1), max_nodes=64) as one_thread:
        yield one_thread


def operations(backend: Backend, dtype: str, *shape: int) -> int:
    """Operations of a product with values of this shape: mul_mat is one, mul_mat_small_batch two."""
    with Storage(backend, 1) as storage, Context(backend) as ctx:
        weight = storage.add("w", dtype, (256, 32))
        storage.allocate(0)
        y = kernel_choice.product(weight, ctx.input("f32", (256, *shape)))
        assert y.shape == tuple([32, *shape] if shape[-1] > 1 else [32, *shape[:-1]])
        ctx.forward(y)
        return ctx.n_nodes


TYPES = sorted(kernel_choice.SMALL_BATCH["avx512"])


@pytest.mark.parametrize("dtype", TYPES)
def test_small_batch_go_to_our_kernels(backend: Backend, dtype: str) -> None:
    if not small_batch_chosen(dtype):
        pytest.skip("this CPU lacks the vectors; ggml's kernels are used throughout")
    served = kernel_choice.small_batch_rows(small_batch_fastest(dtype), dtype, 256, intel=kernel_choice.is_intel())
    for rows in (1, 2, served.start, served.stop - 1, served.stop):
        assert (operations(backend, dtype, rows) == 2) == (rows in served), rows


def test_the_borders_of_each_instruction_set() -> None:
    assert 2 in kernel_choice.small_batch_rows("avx2", "q6_K", 4096)
    assert 1 not in kernel_choice.small_batch_rows("avx2", "q6_K", 4096)
    assert 512 in kernel_choice.small_batch_rows("avxvnni", "q6_K", 4096)
    assert 6 in kernel_choice.small_batch_rows("avx512", "f16", 8192)
    assert 8 in kernel_choice.small_batch_rows("avx2", "bf16", 8192)
    assert [
        rows for rows in range(1, 9) if rows in kernel_choice.small_batch_rows("avx512", "bf16", kernel_choice.SHORT)
    ] == [1, 2, 3, 4]
    assert [
        rows
        for rows in range(1, 9)
        if rows in kernel_choice.small_batch_rows("avx512", "bf16", kernel_choice.SHORT + 1)
    ] == [1]
    assert 33 not in kernel_choice.small_batch_rows("avx512", "q4_K", 4096)
    assert 512 in kernel_choice.small_batch_rows("avx512", "q4_K", 4096, intel=True)
    assert 1 not in kernel_choice.small_batch_rows("scalar", "q4_0", 256)
    assert 1 not in kernel_choice.small_batch_rows("", "q5_K", 256)


def test_other_types_and_shapes_go_to_ggml(backend: Backend) -> None:
    assert operations(backend, "f32", 4) == 1
    assert operations(backend, "q5_K", 4) == 1
    assert operations(backend, "q8_0", 4, 3) == 1


def test_the_repacked_copy_serves_one_row_of_k_quants(backend: Backend) -> None:
    with Storage(backend, 1) as storage, Storage(backend, 1) as other:
        weight, copy = storage.add("w", "q5_K", (256, 32)), other.add("w", "q5_K", (256, 32))
        storage.allocate(0)
        other.allocate(0)
        weight.repacked = copy
        assert kernel_choice.choose_copy(weight, 1) is copy
        assert kernel_choice.choose_copy(weight, kernel_choice.REPACKED_ROWS) is weight
