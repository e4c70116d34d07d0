"""What does it cost to build a graph from Python? A decoding step and a prompt of 16 and of 28 layers.

It happens where a step's shape is new; in the engine, while the step before computes. Finding cells for the tokens and
giving them back is in it. Groups are questions; within one the rows compare. Run:
`python -m pytest bench/bench_graph.py --benchmark-enable --benchmark-group-by=group`.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from ollama_engine.config import EngineConfig
from ollama_engine.input import Batch
from ollama_engine.runner.load.loading import load

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture


@pytest.mark.parametrize("tokens", [1, 512])
@pytest.mark.parametrize("layers", [16, 28])
def test_build(benchmark: BenchmarkFixture, request: pytest.FixtureRequest, layers: int, tokens: int) -> None:
    benchmark.group = f"build a graph of {layers} layers"
    path = request.getfixturevalue("thin_1b" if layers == 16 else "thin_3b")
    with closing(load(path, EngineConfig(num_ctx=1024, parallel=1, threads=1))) as loaded:
        executor, batch = loaded.executor, Batch.of([1] * tokens, 0)

        def build() -> None:
            executor.prepare(batch)
            executor.scrap()

        benchmark(build)
