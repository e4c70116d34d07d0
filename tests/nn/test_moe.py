"""What a mixture of experts asks the graph for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ollama_engine.ml.backend import Backend
from ollama_engine.ml.context import Context
from ollama_engine.ml.placement import BackendParams
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
