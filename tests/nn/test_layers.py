"""Which kernel a linear map asks for: the borders of docs/performance.md, told by the operations in the graph."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ollama_engine.ml.backend import Backend
from ollama_engine.ml.context import Context
from ollama_engine.ml.ops_few import few_rows_instructions
from ollama_engine.ml.placement import BackendParams
from ollama_engine.ml.storage import Storage
from ollama_engine.nn import layers


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    with Backend(BackendParams(threads=1), max_nodes=64) as one_thread:
        yield one_thread


def operations(backend: Backend, dtype: str, *shape: int) -> int:
    """Operations of a product with values of this shape: mul_mat is one, mul_mat_few two."""
    with Storage(backend, 1) as storage, Context(backend) as ctx:
        weight = storage.add("w", dtype, (256, 32))
        storage.allocate(0)
        y = layers.product(weight, ctx.input("f32", (256, *shape)))
        assert y.shape == tuple([32, *shape] if shape[-1] > 1 else [32, *shape[:-1]])
        ctx.forward(y)
        return ctx.n_nodes


@pytest.mark.parametrize("dtype", layers.FEW_ROWS)
def test_few_rows_go_to_our_kernels(backend: Backend, dtype: str) -> None:
    if "avx512" not in few_rows_instructions(dtype):
        pytest.skip("this CPU has no AVX-512; ggml's kernels are used throughout")
    most = layers.FEW_ROWS[dtype]
    chosen = {rows: operations(backend, dtype, rows) == 2 for rows in (1, 2, most, most + 1)}
    assert chosen == {rows: rows <= most for rows in chosen}


def test_other_types_and_shapes_go_to_ggml(backend: Backend) -> None:
    assert operations(backend, "f16", 4) == 1
    assert operations(backend, "q5_K", 4) == 1
    assert operations(backend, "q8_0", 4, 3) == 1


def test_the_packed_copy_serves_one_row_of_k_quants(backend: Backend) -> None:
    with Storage(backend, 1) as storage, Storage(backend, 1) as other:
        weight, copy = storage.add("w", "q5_K", (256, 32)), other.add("w", "q5_K", (256, 32))
        storage.allocate(0)
        other.allocate(0)
        weight.packed = copy
        assert layers.choose_copy(weight, 1) is copy
        assert layers.choose_copy(weight, layers.PACKED_ROWS) is weight
