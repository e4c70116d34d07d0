"""Cells move together between steps where attention reads a run of them. Answers are the same, and wait little."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from ollama_engine import Engine, SamplingParams
from ollama_engine.errors import ComputeError
from ollama_engine.kvcache import packing
from ollama_engine.kvcache.move import Mover
from ollama_engine.runner.core import defragmenting
from tests.support.engine_thread import held
from tests.support.tiny import write_tiny_llama
from tests.support.waiting import eventually
from tests.support.workers import running_worker

PATIENCE = 50
N_LONG, N_SHORT = 220, 120


def greedy(n: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=n, logit_bias={318: float("-inf"), 319: float("-inf")})


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_layer=2, seed=4).path


@pytest.fixture
def run_reading() -> Iterator[None]:
    """Caches as on a CPU without our kernel of attention."""
    with patch("ollama_engine.kvcache.causal.suits_paging", lambda *asked: False):
        yield


def opened(path: str, **options: Any) -> Engine:
    return Engine(path, **{"num_ctx": 512, "parallel": 6, "threads": 1, "batch_size": 32, "verify": True, **options})


def interleaved(engine: Engine, stack: ExitStack) -> tuple[list[Any], list[tuple[int, ...]]]:
    """Six answers side by side, of which four end earlier and leave gaps; two go on. Those of the two."""
    prompts = [[number, *range(1, 20)] for number in range(6)]
    expected = [engine.generate(prompt, greedy(N_LONG), cache=False).tokens for prompt in prompts[:2]]
    with held(engine):
        requests = [engine.submit(prompt, greedy(N_LONG if number < 2 else N_SHORT), cache=False)
                    for number, prompt in enumerate(prompts)]  # fmt: skip
    return requests, expected


@pytest.mark.usefixtures("run_reading")
@pytest.mark.parametrize("flash", ["on", "off"])
def test_answers_go_on_and_cells_lie_together(path: str, flash: Any) -> None:
    with ExitStack() as stack:
        engine = stack.enter_context(opened(path, flash_attention=flash))
        requests, expected = interleaved(engine, stack)
        assert [request.result(PATIENCE).tokens for request in requests[:2]] == expected
        metrics = engine.metrics
        assert metrics.moved_cells > 100
        steps = [step for step in engine._monitor.trace.steps() if step.spans[0].phase == "defrag"]
        assert len(steps) >= metrics.moved_cells / packing.AT_ONCE
        assert '"cells ' in engine.trace()


@pytest.mark.usefixtures("run_reading")
def test_each_gap_moves_a_bounded_number_and_steps_go_on_between(path: str) -> None:
    gaps: list[tuple[int, int]] = []
    original = packing.CellPacker.defrag

    def noted(self: packing.CellPacker, sequences: Any, rows: int) -> int:
        moved = original(self, sequences, rows)
        gaps.append((engine._core.metrics().steps, moved))
        return moved

    with ExitStack() as stack:
        stack.enter_context(patch.object(packing, "AT_ONCE", 32))
        stack.enter_context(patch.object(packing.CellPacker, "defrag", noted))
        engine = stack.enter_context(opened(path))
        requests, expected = interleaved(engine, stack)
        assert [request.result(PATIENCE).tokens for request in requests[:2]] == expected
    assert len(gaps) >= 4
    assert all(0 < moved <= 32 for _, moved in gaps)
    assert len({steps for steps, _ in gaps}) == len(gaps), "a step lies between any two"


@pytest.mark.usefixtures("run_reading")
def test_a_move_that_fails_costs_no_answer(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """All is computed again: what cells hold is unknown."""
    with ExitStack() as stack:
        engine = stack.enter_context(opened(path))
        rotate, failed = Mover.rotate, []

        def fails_halfway(self: Mover, moves: Any, delta: int) -> None:
            if failed:
                return rotate(self, moves, delta)
            failed.append(len(moves.sources))
            rotate(self, moves, delta)
            raise ComputeError("told to")

        stack.enter_context(patch.object(Mover, "rotate", fails_halfway))
        requests, expected = interleaved(engine, stack)
        assert [request.result(PATIENCE).tokens for request in requests[:2]] == expected
        assert failed
        assert engine.metrics.preemptions >= 2
    assert "cells could not be moved" in caplog.text


def test_listed_attention_never_moves_cells(path: str) -> None:
    with ExitStack() as stack:
        # The kernel in plain C runs on any CPU, though it is not chosen there.
        stack.enter_context(patch("ollama_engine.kvcache.causal.suits_paging", lambda *asked: True))
        engine = stack.enter_context(opened(path))
        asked = stack.enter_context(patch.object(packing.CellPacker, "due", side_effect=AssertionError))
        requests, expected = interleaved(engine, stack)
        assert [request.result(PATIENCE).tokens for request in requests[:2]] == expected
        assert engine.metrics.moved_cells == 0
        assert not asked.called


def test_cells_of_a_worker_move(path: str, tmp_path: Path) -> None:
    with running_worker(tmp_path) as worker, ExitStack() as stack:
        engine = stack.enter_context(opened(path, devices=[worker.address], kv_cache_type="f32"))
        requests, expected = interleaved(engine, stack)
        assert [request.result(PATIENCE).tokens for request in requests[:2]] == expected
        eventually(lambda: engine.metrics.moved_cells > 100)


def test_there_is_a_look_every_few_steps(path: str) -> None:
    """The cost of a step without gaps: nothing but a count, in most of them."""
    with patch("ollama_engine.kvcache.causal.suits_paging", lambda *asked: False), opened(path) as engine, \
            patch.object(packing.CellPacker, "due", return_value=False) as due:  # fmt: skip
        engine.generate([1, 2, 3], greedy(160))
        assert 1 <= due.call_count <= engine.metrics.steps / defragmenting.EVERY + 2
