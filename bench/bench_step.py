"""What does a step cost besides computing? The core with an executor that computes nothing, and with one that does.

Planning, cells, mask, inputs, sampling (top-k 40 of 2,560 tokens), detokenizing and delivery are all in it; logits are
random. In the engine, all but sampling and launch runs while the device computes. Run:
`python -m pytest bench/bench_step.py --benchmark-enable --benchmark-group-by=group`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ollama_engine import SamplingParams, demo
from ollama_engine.config import EngineConfig
from ollama_engine.input import FloatArray
from ollama_engine.runner.core.engine_core import EngineCore
from ollama_engine.runner.core.new_requests import new_generation
from ollama_engine.runner.execute.executor import Executor
from ollama_engine.runner.execute.graph import StepGraph
from ollama_engine.runner.load.loading import Loaded, load
from ollama_engine.runner.observe.monitor import Monitor
from ollama_engine.runner.request.inputs import Inputs
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.runner.request.request import Request

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

ROUNDS = 400
PROMPT = [5, 6, 7, 8]
LOGITS = np.random.default_rng(0).standard_normal((32, 2560), dtype=np.float32)


class IdleExecutor(Executor):
    """Does all that a step needs, but to compute. Every step has the same logits."""

    def _compute(self, graph: StepGraph) -> None:
        pass

    def _finish(self, graph: StepGraph) -> None:
        pass

    @contextmanager
    def _read(self, graph: StepGraph, needed: Sequence[int]) -> Iterator[FloatArray]:
        assert graph.shape is not None
        yield LOGITS[: graph.shape.n_outputs]


@contextmanager
def decoding(streams: int, executor: type[Executor]) -> Iterator[tuple[Loaded, EngineCore]]:
    """A core whose `streams` requests have all begun to answer, with more to say than anybody will ask for."""
    config = EngineConfig(num_ctx=ROUNDS + 100, parallel=streams, threads=1)
    with closing(load(demo.path(), config)) as loaded:
        made = executor(loaded.backend, loaded.model, loaded.cache, loaded.executor.batch_size, streams)
        with closing(made):
            core = EngineCore(made, loaded.cache, streams, Monitor(loaded.tokenizer.token_text))
            for number in range(streams):
                core.add(request(loaded, number))
            for _ in range(8):
                core.step()
            assert len(core.queue.running) == streams, "all of them decode"
            yield loaded, core


def request(loaded: Loaded, number: int):  # type: ignore[no-untyped-def]
    """One that never ends by itself."""
    never = dict.fromkeys(loaded.tokenizer.eog_ids, float("-inf"))
    params = SamplingParams(top_k=40, logit_bias=never, seed=number)
    return new_generation(loaded, Inputs.text([number, *PROMPT]), params, RequestOptions(), Request().channel)


@pytest.mark.parametrize("streams", [1, 8, 32])
def test_without_computing(benchmark: BenchmarkFixture, streams: int) -> None:
    benchmark.group = "one decode step without computing"
    with decoding(streams, IdleExecutor) as (_, core):
        benchmark.pedantic(core.step, rounds=ROUNDS, warmup_rounds=20)


@pytest.mark.parametrize("streams", [1, 8, 32])
def test_with_computing(benchmark: BenchmarkFixture, streams: int) -> None:
    benchmark.group = "one decode step of the demo model"
    with decoding(streams, Executor) as (_, core):
        benchmark.pedantic(core.step, rounds=ROUNDS // 2, warmup_rounds=20)
        metrics = core.metrics()
    assert benchmark.disabled or metrics.graph_reuse_rate >= 0.95
