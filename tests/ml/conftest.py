"""One small backend for all tests of this folder, and shorthands to compute with it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from zlib import crc32

import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor

Compute = Callable[..., NDArray]


@pytest.fixture(autouse=True)
def own_numbers(request: pytest.FixtureRequest) -> None:
    """A test draws the same from its module's RNG whatever ran before it, which differs from process to process."""
    for name in (request.module.__name__, "tests.ml.ops.small_batch_weights"):
        generator = getattr(sys.modules.get(name), "RNG", None)
        if generator is not None:
            generator.bit_generator.state = np.random.PCG64(crc32(f"{name} {request.node.nodeid}".encode())).state


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
