"""Which kernel a product of experts asks for: docs/performance.md's borders, told by the operations in the graph."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ollama_engine.ml import kernel_choice
from ollama_engine.ml.backend import Backend
from ollama_engine.ml.context import Context
from ollama_engine.ml.ops_small_batch import small_batch_instructions
from ollama_engine.ml.placement import BackendParams
from ollama_engine.ml.storage import Storage
from ollama_engine.nn import moe


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    with Backend(BackendParams(threads=1), max_nodes=64) as one_thread:
        yield one_thread


def operations(backend: Backend, dtype: str, tokens: int) -> int:
    """Operations of a product of 2 experts, both of which each token uses: mul_mat_id is one, mul_mat_id_small_batch
    three.
    """
    with Storage(backend, 1) as storage, Context(backend) as ctx:
        experts = storage.add("w", dtype, (256, 32, 2))
        storage.allocate(0)
        y = kernel_choice.expert_product(experts, ctx.input("f32", (256, 1, tokens)), ctx.input("i32", (2, tokens)))
        assert y.dim(0) == 32
        assert (y.dim(1), y.dim(2)) == (2, tokens)
        ctx.forward(y)
        return ctx.n_nodes


@pytest.mark.parametrize(
    "dtype", [dtype for dtype, chosen in kernel_choice.SMALL_BATCH["avx512"].items() if chosen.per_expert]
)
def test_small_batch_go_to_our_kernels(backend: Backend, dtype: str) -> None:
    if "avx512" not in small_batch_instructions(dtype):
        pytest.skip("this CPU has no AVX-512; ggml's kernels are used throughout")
    most = kernel_choice.SMALL_BATCH["avx512"][dtype].per_expert
    chosen = {tokens: operations(backend, dtype, tokens) == 3 for tokens in (1, 2, most, most + 1)}
    assert chosen == {tokens: tokens <= most for tokens in chosen}


def test_other_types_go_to_ggml(backend: Backend) -> None:
    assert operations(backend, "f16", 4) == 1
    assert operations(backend, "q5_K", 4) == 1


def test_the_sum_is_one_operation(backend: Backend) -> None:
    with Context(backend) as ctx:
        y = moe.sum_experts(ctx.input("f32", (64, 4, 3)), ctx.input("f32", (1, 4, 3)))
        assert y.shape == (64, 3)
        ctx.forward(y)
        assert ctx.n_nodes == (1 if len(backend.devices) == 1 else 1 + 4 + 3)
