"""What does a cached prefix cost? The first token of a prompt of which 2,000 tokens are known and 32 are new.

A thin model with the layers of Llama 3.2 1B, one thread. The twin computes the 32 and nothing else, after the same
2,000 cells: the engine adds the look-up, sharing of cells, sampling, and the way to the caller and back. A third row
computes the same 32 tokens without a context. Run:
`python -m pytest bench/bench_prefix.py --benchmark-enable --benchmark-group-by=group`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from ollama_engine import Engine, SamplingParams
from ollama_engine.config import EngineConfig
from ollama_engine.input import Batch
from ollama_engine.runner.load.loading import load

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

N_CACHED, N_NEW, ROUNDS = 2000, 32, 20
PREFIX = [1000 + i for i in range(N_CACHED)]
AFTER = f"{N_NEW} new tokens after {N_CACHED} cached ones, to the first token of the answer"
ONE = SamplingParams(max_tokens=1)


@pytest.fixture(scope="module")
def engine(thin_1b: str) -> Iterator[Engine]:
    with Engine(thin_1b, num_ctx=4096, parallel=2, threads=1) as made:
        yield made


def measure(benchmark: BenchmarkFixture, engine: Engine, prefix: list[int]) -> None:
    """Every prompt goes on otherwise, so that nothing but the prefix is known of it."""
    numbers = itertools.count(5000, N_NEW)

    def prompt() -> tuple[tuple[list[int], SamplingParams], dict[str, object]]:
        first = next(numbers)
        return ([*prefix, *range(first, first + N_NEW)], ONE), {}

    if prefix:
        engine.generate(prefix, ONE)
    done = benchmark.pedantic(engine.generate, setup=prompt, rounds=ROUNDS, warmup_rounds=2)
    assert done.usage.cached_tokens == len(prefix)


def test_cached_prefix(benchmark: BenchmarkFixture, engine: Engine) -> None:
    benchmark.group = AFTER
    measure(benchmark, engine, PREFIX)


@pytest.mark.twin
def test_computing_alone(benchmark: BenchmarkFixture, thin_1b: str) -> None:
    benchmark.group = AFTER
    with closing(load(thin_1b, EngineConfig(num_ctx=4096, parallel=2, threads=1))) as loaded:
        for first in range(0, N_CACHED, 500):
            loaded.executor.run(Batch.of(PREFIX[first : first + 500], first))
        new = Batch.of(range(5000, 5000 + N_NEW), N_CACHED)
        benchmark.pedantic(
            loaded.executor.run, args=(new,), setup=lambda: loaded.cache.remove(0, N_CACHED), rounds=ROUNDS,
            warmup_rounds=2,
        )  # fmt: skip


def test_without_prefix(benchmark: BenchmarkFixture, engine: Engine) -> None:
    benchmark.group = f"{N_NEW} new tokens after nothing, to the first token of the answer"
    measure(benchmark, engine, [])
