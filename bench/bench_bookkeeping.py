"""What does a step cost in Python besides the device? Plans, prefix look-ups, counters and traces.

Groups are questions; within one the rows compare. Run:
`python -m pytest bench/bench_bookkeeping.py --benchmark-enable --benchmark-group-by=group`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from ollama_engine.runner.observe.metrics import CellCounts, Metrics
from ollama_engine.runner.observe.trace import PhaseSpan, StepRecord, Trace
from ollama_engine.runner.prefix.prefix_cache import PrefixCache
from ollama_engine.runner.request.inputs import Inputs
from ollama_engine.runner.schedule.scheduler import BatchLimits, Candidate, plan

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

N_SEQUENCES, CONTEXT = 64, 131_072
# How much of the prompt each history begins with.
HISTORIES = {
    "all different": lambda sequence: 1,
    "one system prompt of 2000": lambda sequence: 2000,
    "one chat goes on": lambda sequence: CONTEXT if sequence == 40 else 2000,
    "all the same": lambda sequence: CONTEXT,
    "worst case: each a little longer": lambda sequence: CONTEXT // N_SEQUENCES * (sequence + 1),
}


@pytest.mark.parametrize("streams", [1, 4, 32, 64])
def test_plan_decoding(benchmark: BenchmarkFixture, streams: int) -> None:
    benchmark.group = "a plan when all decode"
    candidates = [Candidate(key, 100, 101, decoding=True) for key in range(streams)]
    limits = BatchLimits(512, 64, 100_000)
    state = plan(candidates, limits).state
    benchmark(plan, candidates, limits, state)


@pytest.mark.parametrize("streams", [1, 4, 32, 64])
def test_plan_prompts(benchmark: BenchmarkFixture, streams: int) -> None:
    benchmark.group = "a plan when half decode and half have prompts with images"
    groups = tuple((begin, begin + 258) for begin in range(0, 100_000, 300))
    candidates = [
        Candidate(key, 3000, 3001, decoding=True) if key % 2 else Candidate(key, 3000, 90_000, groups=groups)
        for key in range(streams)
    ]
    limits = BatchLimits(512, 64, 10**7)
    state = plan(candidates, limits).state
    benchmark(plan, candidates, limits, state)


@pytest.mark.parametrize("name", HISTORIES)
def test_longest_prefix(benchmark: BenchmarkFixture, name: str) -> None:
    benchmark.group = f"longest prefix among {N_SEQUENCES} histories of {CONTEXT}"
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, 128_000, CONTEXT, dtype=np.int32)
    prefix_cache = PrefixCache(N_SEQUENCES)
    for sequence in range(N_SEQUENCES):
        same = HISTORIES[name](sequence)
        taken = prefix_cache.take(sequence)
        assert taken is not None
        rest = rng.integers(0, 128_000, CONTEXT - same, dtype=np.int32)
        prefix_cache.extend(taken.sequence, Inputs.text(np.concatenate((prompt[:same], rest))))
    benchmark(prefix_cache.longest_prefix, Inputs.text(prompt))


def test_append(benchmark: BenchmarkFixture) -> None:
    benchmark.group = "one token more"
    prefix_cache = PrefixCache(1)
    prefix_cache.take(0)
    benchmark(prefix_cache.append, 0, 7)


def test_metrics_and_trace(benchmark: BenchmarkFixture) -> None:
    benchmark.group = "what is recorded of a step"
    metrics, trace, cells = Metrics(), Trace(), CellCounts(100, 200, 3)

    def record() -> None:
        metrics.step(1.0, 0.01, prompt_tokens=0, completion_tokens=4, graph_reused=True)
        metrics.gauges(queued=0, running=4, cells=cells)
        spans = (
            PhaseSpan("plan", 1.0, 1.1),
            PhaseSpan("build", 1.1, 1.2),
            PhaseSpan("wait", 1.2, 1.3),
            PhaseSpan("sample", 1.3, 1.4),
            PhaseSpan("emit", 1.4, 1.5),
        )
        trace.step(StepRecord(1, spans, 0, 4, 4, True))

    benchmark(record)
