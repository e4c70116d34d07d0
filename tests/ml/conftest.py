"""One small backend for all tests of this folder, and shorthands to compute with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine.ml.backend import Backend
from ollama_engine.ml.context import Context
from ollama_engine.ml.placement import BackendParams
from ollama_engine.ml.tensor import Tensor

Compute = Callable[..., NDArray]


@pytest.fixture(scope="session")
def shared_backend() -> Iterator[Backend]:
    with Backend(BackendParams(threads=2), max_nodes=1024) as backend:
        yield backend


@pytest.fixture
def backend(shared_backend: Backend) -> Backend:
    """A backend that a test must leave open."""
    assert not shared_backend.closed
    return shared_backend


@pytest.fixture
def ctx(backend: Backend) -> Iterator[Context]:
    with Context(backend) as context:
        yield context


@pytest.fixture
def compute(ctx: Context) -> Compute:
    """compute(y, x=values ...): give the inputs of `ctx` their values and return those of `y`."""

    def run(output: Tensor, *feeds: tuple[Tensor, NDArray]) -> NDArray:
        ctx.forward(output)
        ctx.alloc()
        for tensor, values in feeds:
            tensor.set(np.ascontiguousarray(values))
        ctx.compute()
        return output.numpy()

    return run
