"""The Walsh-Hadamard transform: beside the matrix, its own inverse, and the same bits however it is shared out."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine.errors import ShapeError
from ollama_engine.kvcache.rotation import hadamard_matrix
from ollama_engine.ml import ops
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context


def hadamard(x: NDArray[np.float32], block: int, threads: int = 1) -> NDArray[np.float32]:
    with Backend(BackendParams(threads=threads, gpu_layers=0)) as backend, Context(backend) as ctx:
        y = ops.hadamard(ctx.from_floats(x), block)
        ctx.forward(y)
        ctx.compute()
        return y.numpy()


@pytest.mark.parametrize("block", [16, 32, 64, 128, 256, 512, 1024])
def test_it_is_the_matrix_and_its_own_inverse(block: int) -> None:
    x = np.random.default_rng(block).standard_normal((3, 5, 2 * block)).astype(np.float32)
    runs = x.astype(np.float64).reshape(-1, block)
    y = hadamard(x, block)
    np.testing.assert_allclose(y.reshape(-1, block), runs @ hadamard_matrix(block).astype(np.float64), atol=4e-6)
    np.testing.assert_allclose(hadamard(y, block), x, atol=4e-6)


def test_the_same_bits_with_any_number_of_threads_and_rows() -> None:
    x = np.random.default_rng(0).standard_normal((300, 64)).astype(np.float32)
    whole = hadamard(x, 64)
    np.testing.assert_array_equal(hadamard(x, 64, threads=2).view(np.uint32), whole.view(np.uint32))
    np.testing.assert_array_equal(hadamard(x[7:9], 64).view(np.uint32), whole[7:9].view(np.uint32))


@pytest.mark.parametrize("block", [0, 8, 24, 128, 2048, -16, 2**70])
def test_other_blocks_are_refused(block: int) -> None:
    with Backend(BackendParams(threads=1)) as backend, Context(backend) as ctx:
        x = ctx.from_floats(np.ones((2, 64), np.float32))
        with pytest.raises((ShapeError, OverflowError)):
            ops.hadamard(x, block)
