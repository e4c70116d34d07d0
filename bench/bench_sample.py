"""What does one sampling step cost? Scan, selection, softmax, cuts and draw of one sequence, beside the numpy twin
and llama.cpp's chain of samplers; then masks, penalties, log-probabilities and 32 rows at once.

Rows are Gaussian with standard deviation 3, of the size of real logits. Groups are questions; within one the rows
compare. Run: `python -m pytest bench/bench_sample.py --benchmark-enable --benchmark-group-by=group`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from bench.peer_llama import Llama
from ollama_engine.sample import Sampler, SamplingParams, accept_rows, sample_rows, sampler_instructions
from tests.sample import twin
from tests.sample.rows import bitmap, some

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

VOCABULARIES = [128_256, 262_144]
STEPS = {
    "top-k 40": SamplingParams(seed=1),
    "top-k off": SamplingParams(seed=1, top_k=0),
    "top-k off, temperature last": SamplingParams(seed=1, top_k=0, samplers=("top_p", "temperature")),
    "greedy": SamplingParams(temperature=0),
}

OFF = SamplingParams(temperature=1, top_k=0, top_p=1, seed=1, dry_sequence_breakers=(), dry_penalty_last_n=4096)
SAMPLERS = {
    "none": OFF,
    "top_k": replace(OFF, top_k=40),
    "top_p": replace(OFF, top_p=0.9),
    "min_p": replace(OFF, min_p=0.05),
    "typ_p": replace(OFF, typical_p=0.9),
    "top_n_sigma": replace(OFF, top_n_sigma=1.0),
    "xtc": replace(OFF, xtc_probability=1, xtc_threshold=0.01),
    "dynatemp": replace(OFF, dynatemp_range=0.5),
    "mirostat 1": replace(OFF, mirostat=1),
    "mirostat 2": replace(OFF, mirostat=2),
    "adaptive_p": replace(OFF, adaptive_target=0.3, min_p=0.05),
    "dry": replace(OFF, dry_multiplier=0.8, top_k=40),
    "all, behind top_k": SamplingParams(
        seed=1, typical_p=0.95, min_p=0.05, xtc_probability=1, xtc_threshold=0.1, dynatemp_range=0.5
    ),
}
"""One at a time; DRY and adaptive-p with what goes with them. DRY looks at 4096 tokens."""


def gaussian(rows: int, n_vocab: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return (np.random.default_rng(0).standard_normal((rows, n_vocab)) * 3).astype(np.float32)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("n_vocab", VOCABULARIES)
def test_step(benchmark: BenchmarkFixture, n_vocab: int, name: str) -> None:
    benchmark.group = f"one step, vocabulary {n_vocab}, {name}"
    logits = gaussian(1, n_vocab)[0]
    benchmark(Sampler(STEPS[name], n_vocab).sample, logits)


@pytest.mark.twin
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("n_vocab", VOCABULARIES)
def test_step_numpy(benchmark: BenchmarkFixture, n_vocab: int, name: str) -> None:
    benchmark.group = f"one step, vocabulary {n_vocab}, {name}"
    logits = gaussian(1, n_vocab)[0]
    benchmark(twin.sample, logits, STEPS[name], 1, 0)


@pytest.mark.peer
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("n_vocab", VOCABULARIES)
def test_step_peer(benchmark: BenchmarkFixture, llama: Llama, n_vocab: int, name: str) -> None:
    benchmark.group = f"one step, vocabulary {n_vocab}, {name}"
    logits = gaussian(1, n_vocab)[0]
    with llama.chain(STEPS[name], n_vocab) as chain:
        benchmark(llama.sample, chain, logits)


def history(name: str) -> list[int]:
    """4096 tokens of 500 for DRY: they repeat, but not for long."""
    return np.random.default_rng(2).integers(0, 500, 4096).tolist() if name == "dry" else []


@pytest.mark.parametrize("name", SAMPLERS)
def test_step_by_sampler(benchmark: BenchmarkFixture, name: str) -> None:
    benchmark.group = f"one step, vocabulary 128256, {name} alone"
    sampler = Sampler(SAMPLERS[name], 128_256)
    sampler.accept_many(history(name))
    benchmark(sampler.sample, gaussian(1, 128_256)[0])


@pytest.mark.peer
@pytest.mark.parametrize("name", SAMPLERS)
def test_step_by_sampler_peer(benchmark: BenchmarkFixture, llama: Llama, name: str) -> None:
    benchmark.group = f"one step, vocabulary 128256, {name} alone"
    logits = gaussian(1, 128_256)[0]
    with llama.chain(SAMPLERS[name], 128_256, history(name)) as chain:
        benchmark(llama.sample, chain, logits)


@pytest.mark.parametrize("scale", [0.0, 1e-3, 0.1, 1.0, 3.0, 10.0])
def test_step_by_spread(benchmark: BenchmarkFixture, scale: float) -> None:
    benchmark.group = "top-k off: does the spread of the logits matter? (vocabulary 128256)"
    logits = gaussian(1, 128_256)[0] * np.float32(scale / 3)
    benchmark(Sampler(STEPS["top-k off"], 128_256).sample, logits)


@pytest.mark.parametrize("instructions", sampler_instructions())
@pytest.mark.parametrize("name", ["top-k 40", "top-k off"])
def test_step_by_instructions(benchmark: BenchmarkFixture, name: str, instructions: str) -> None:
    benchmark.group = f"what do wider vectors give? ({name}, vocabulary 128256)"
    benchmark(Sampler(STEPS[name], 128_256, instructions).sample, gaussian(1, 128_256)[0])


@pytest.mark.parametrize("share", [None, 1e-5, 0.01, 0.5, 0.99])
@pytest.mark.parametrize("name", STEPS)
def test_step_with_mask(benchmark: BenchmarkFixture, name: str, share: float | None) -> None:
    """Allowed tokens are anywhere in the vocabulary, as those of a grammar are; None is no mask."""
    benchmark.group = f"what does a token mask add? ({name}, vocabulary 128256)"
    mask = None if share is None else bitmap(some(128_256, share))
    benchmark(Sampler(STEPS[name], 128_256).sample, gaussian(1, 128_256)[0], mask)


@pytest.mark.parametrize("recent", [0, 64, 4096])
@pytest.mark.parametrize("name", ["top-k 40", "top-k off"])
def test_step_with_penalties(benchmark: BenchmarkFixture, name: str, recent: int) -> None:
    benchmark.group = f"what do penalties add? ({name}, vocabulary 128256)"
    logits = gaussian(1, 128_256)[0]
    params = replace(STEPS[name], repeat_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.5, repeat_last_n=-1)
    sampler = Sampler(params, 128_256)
    sampler.accept_many(np.random.default_rng(1).integers(0, 128_256, recent))
    benchmark(sampler.sample, logits)


@pytest.mark.parametrize("top", [0, 20])
@pytest.mark.parametrize("n_vocab", VOCABULARIES)
def test_logprobs(benchmark: BenchmarkFixture, n_vocab: int, top: int) -> None:
    benchmark.group = f"log-probabilities, vocabulary {n_vocab}"
    logits = gaussian(1, n_vocab)[0]
    benchmark(Sampler(SamplingParams(), n_vocab).logprobs, logits, 7, top)


@pytest.mark.parametrize("rows", [1, 8, 32])
@pytest.mark.parametrize("name", ["top-k 40", "top-k off"])
def test_batch(benchmark: BenchmarkFixture, name: str, rows: int) -> None:
    """The same 32 rows each time, since more rows than fit into a cache cost more to read however they are grouped."""
    benchmark.group = f"32 rows in calls of several rows ({name}, vocabulary 128256)"
    logits = gaussian(32, 128_256)
    samplers = [Sampler(replace(STEPS[name], seed=i), 128_256) for i in range(32)]
    parts = [slice(i, i + rows) for i in range(0, 32, rows)]

    def step() -> None:
        for part in parts:
            sample_rows(samplers[part], logits[part])

    benchmark(step)


@pytest.mark.parametrize("rows", [1, 32])
def test_accept(benchmark: BenchmarkFixture, rows: int) -> None:
    benchmark.group = "accept a token for each row"
    samplers = [Sampler(SamplingParams(seed=i, repeat_penalty=1.1), 128_256) for i in range(rows)]
    benchmark(accept_rows, samplers, list(range(rows)))
