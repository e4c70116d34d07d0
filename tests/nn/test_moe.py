"""Operations that a mixture of experts asks the graph for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine.ml import ops
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.nn import moe


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    with Backend(BackendParams(threads=1), max_nodes=64) as one_thread:
        yield one_thread


def test_the_sum_is_one_operation(backend: Backend) -> None:
    with Context(backend) as ctx:
        y = moe.sum_experts(ctx.input("f32", (64, 4, 3)), ctx.input("f32", (1, 4, 3)))
        assert y.shape == (64, 3)
        ctx.forward(y)
        assert ctx.n_nodes == (1 if len(backend.devices) == 1 else 1 + 4 + 3)


def computed(ctx: Context, *tensors: Tensor) -> list[NDArray[np.float32]]:
    ctx.forward(*tensors)
    ctx.alloc()
    ctx.compute()
    return [tensor.numpy() for tensor in tensors]


@pytest.mark.parametrize("used", [1, 2])
def test_an_expert_reads_its_input_times_the_sigmoid_of_its_own_score(used: int, backend: Backend) -> None:
    rng = np.random.default_rng(0)
    scores, x = rng.standard_normal((5, 7)).astype(np.float32), rng.standard_normal((5, 64)).astype(np.float32)
    with Context(backend) as ctx:
        ids, weights = moe.route_sigmoid(ctx.from_floats(scores), used)
        chosen, inputs = computed(ctx, ops.cont(ids), moe.weighted_inputs(ctx.from_floats(x), weights))
    assert np.array_equal(np.sort(chosen), np.sort(np.argsort(-scores)[:, :used]))
    expected = x[:, None] / (1 + np.exp(-np.take_along_axis(scores, chosen, 1)))[:, :, None]
    np.testing.assert_allclose(inputs, expected.reshape(inputs.shape), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("used", [1, 2, 3])
def test_slots_are_added_up(used: int, backend: Backend) -> None:
    outputs = np.random.default_rng(1).standard_normal((4, used, 32)).astype(np.float32)
    with Context(backend) as ctx:
        (found,) = computed(ctx, moe.sum_slots(ctx.from_floats(outputs)))
    np.testing.assert_allclose(found, outputs.sum(axis=1), rtol=1e-5, atol=1e-5)
