"""How does prompt attention depend on the order of cells, on their type, and on requests that decode beside it? Each
of the cache's ways to attention: a mask over the run of cells, gathered keys and values, KV indices.

Two layers with the heads of Llama 3.2 1B, 8,192 tokens of 8 sequences, one thread. Their cells are interleaved, as
decoding together leaves them, or contiguous. Run:
`python -m pytest bench/bench_prompts.py --benchmark-enable --benchmark-group-by=group`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from bench import attention_ways

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

SEQUENCES, TOKENS = 8, 1024
each_way = pytest.mark.parametrize("way", [pytest.param("masked", marks=pytest.mark.twin), "gathered", "indices"])


def measure(
    benchmark: BenchmarkFixture, dtype: str, way: str, rows: list[tuple[int, int]], *, by_turns: bool,
    n_sequences: int = SEQUENCES, n_tokens: int = TOKENS,
) -> None:  # fmt: skip
    """Attention of all layers for rows of (sequence, position)."""
    how: dict[str, Any] = {"by_turns": by_turns, "n_sequences": n_sequences, "n_tokens": n_tokens}
    with attention_ways.step(dtype, way, rows, **how) as step:
        benchmark.pedantic(step, rounds=3, warmup_rounds=1)


@pytest.mark.parametrize("dtype", ["f16", "q8_0"])
@pytest.mark.parametrize("by_turns", [False, True], ids=["one after the other", "by turns"])
@each_way
def test_prompt(benchmark: BenchmarkFixture, way: str, by_turns: bool, dtype: str) -> None:
    lie = "by turns" if by_turns else "one after the other"
    benchmark.group = f"256 rows of a prompt behind {TOKENS} tokens, {dtype}, cells {lie}"
    measure(benchmark, dtype, way, [(0, TOKENS + i) for i in range(256)], by_turns=by_turns)


@pytest.mark.parametrize("dtype", ["f16", "q8_0"])
@pytest.mark.parametrize("way", ["gathered", "indices"])
def test_deep(benchmark: BenchmarkFixture, way: str, dtype: str) -> None:
    behind = SEQUENCES * TOKENS
    benchmark.group = f"256 rows of a prompt behind {behind} tokens of one sequence, {dtype}"
    rows = [(0, behind + i) for i in range(256)]
    measure(benchmark, dtype, way, rows, by_turns=False, n_sequences=1, n_tokens=behind)


@each_way
def test_mixed(benchmark: BenchmarkFixture, way: str) -> None:
    """A step of a busy engine."""
    benchmark.group = f"64 rows of a prompt beside {SEQUENCES - 1} that decode, all behind {TOKENS} tokens"
    rows = [(0, TOKENS + i) for i in range(64)] + [(s, TOKENS) for s in range(1, SEQUENCES)]
    measure(benchmark, "f16", way, rows, by_turns=True)
