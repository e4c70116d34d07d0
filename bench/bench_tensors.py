"""What does it cost to get values into tensors and out of them? Each beside a numpy copy of the same bytes.

Groups are questions; within one the rows compare. Run:
`python -m pytest bench/bench_tensors.py --benchmark-enable --benchmark-group-by=group`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine.ml import ops
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

SIZES = [16, 4096, 128_256, 4_194_304]
FLOATS = {n: np.linspace(0, 1, n, dtype=np.float32) for n in SIZES}


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    with Backend(BackendParams(threads=1), max_nodes=64) as made:
        yield made


def computed(ctx: Context, n: int) -> tuple[Tensor, Tensor]:
    x = ctx.input("f32", (n,))
    y = ops.scale(x, 2.0)
    ctx.forward(y)
    ctx.alloc()
    x.set(FLOATS[n])
    ctx.compute()
    return x, y


@pytest.mark.parametrize("n", SIZES)
class TestOneTensor:
    def test_from_floats(self, benchmark: BenchmarkFixture, backend: Backend, n: int) -> None:
        """A context holds as many tensors as it was made for, so each round has a new one; its cost is not counted."""
        benchmark.group = f"a new constant of {n} floats"
        kept: list[Context] = []

        def fresh() -> tuple[tuple[Context, NDArray[np.float32]], dict[str, object]]:
            for ctx in kept:
                ctx.close()
            kept[:] = [Context(backend)]
            kept[0].zeros("f32", (1,))  # the first constant of a context takes memory for many
            return (kept[0], FLOATS[n]), {}

        benchmark.pedantic(Context.from_floats, setup=fresh, rounds=50)

    @pytest.mark.twin
    def test_numpy_copy(self, benchmark: BenchmarkFixture, n: int) -> None:
        benchmark.group = f"a new constant of {n} floats"
        benchmark.pedantic(FLOATS[n].copy, rounds=50)

    def test_set(self, benchmark: BenchmarkFixture, backend: Backend, n: int) -> None:
        benchmark.group = f"write {n} floats"
        with Context(backend) as ctx:
            benchmark(computed(ctx, n)[0].set, FLOATS[n])

    @pytest.mark.twin
    def test_numpy_write(self, benchmark: BenchmarkFixture, n: int) -> None:
        benchmark.group = f"write {n} floats"
        benchmark(np.copyto, np.empty_like(FLOATS[n]), FLOATS[n])

    def test_read_into(self, benchmark: BenchmarkFixture, backend: Backend, n: int) -> None:
        benchmark.group = f"read {n} floats"
        with Context(backend) as ctx:
            benchmark(computed(ctx, n)[1].read_into, np.empty_like(FLOATS[n]))

    @pytest.mark.twin
    def test_numpy_read(self, benchmark: BenchmarkFixture, n: int) -> None:
        benchmark.group = f"read {n} floats"
        benchmark(np.copyto, np.empty_like(FLOATS[n]), FLOATS[n])

    def test_to_array(self, benchmark: BenchmarkFixture, backend: Backend, n: int) -> None:
        benchmark.group = f"read {n} floats"
        with Context(backend) as ctx:
            benchmark(computed(ctx, n)[1].numpy)

    def test_mapped(self, benchmark: BenchmarkFixture, backend: Backend, n: int) -> None:
        benchmark.group = f"read {n} floats"
        with Context(backend) as ctx:
            tensor = computed(ctx, n)[1]

            def look() -> None:
                with tensor.mapped():
                    pass

            benchmark(look)
