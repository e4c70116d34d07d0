"""What does the cell table cost? One decoding step of 64 sequences, the queries in between, and the calls of a request;
in C beside the numpy twin of the tests.

131072 cells, of which 64 sequences have 1024 each, interleaved as they decoded; some rows add 10,000 idle sequences.
Groups are questions; within one the rows compare.
Run: `python -m pytest bench/bench_cells.py --benchmark-enable --benchmark-only`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ollama_engine.kvcache.cells import Cells
from tests.kvcache.cells_twin import CellsTwin

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

N_CELLS, N_SEQUENCES, LENGTH = 131_072, 64, 1024
SEQUENCES = np.arange(N_SEQUENCES, dtype=np.int32)
WINDOW = 900
N_IDLE = 10_000
TABLES = [pytest.param(Cells, id="C"), pytest.param(CellsTwin, id="numpy", marks=pytest.mark.twin)]
each_table = pytest.mark.parametrize("table", TABLES)


def filled(
    table: Callable[..., Any], sequences: int = N_SEQUENCES, length: int = LENGTH, window: int | None = None
) -> Any:
    """A prompt of half the length each, then the other half, one token each at a time."""
    cells = table(N_CELLS, window=window)
    half = length // 2
    prompts = np.tile(np.arange(half, dtype=np.int32), sequences), np.repeat(SEQUENCES[:sequences], half)
    cells.place(np.arange(sequences * half, dtype=np.int32), *prompts)
    answers = np.repeat(np.arange(half, length, dtype=np.int32), sequences), np.tile(SEQUENCES[:sequences], half)
    cells.place(np.arange(sequences * half, sequences * length, dtype=np.int32), *answers)
    return cells


def step(cells: Any, position: int) -> None:
    """CellIndices for one token of each sequence, and what their masks extend over."""
    positions = np.full(N_SEQUENCES, position, dtype=np.int32)
    places = cells.find_places(positions, SEQUENCES)
    cells.place(places, positions, SEQUENCES)
    cells.span(SEQUENCES)


def window_step(cells: Any, position: int) -> None:
    """The same where each sequence drops a cell for the one it takes."""
    positions = np.full(N_SEQUENCES, position, dtype=np.int32)
    cells.slide(positions, SEQUENCES)
    step(cells, position)


def run_steps(benchmark: BenchmarkFixture, step: Callable[[Any, int], None], cells: Any) -> None:
    positions = iter(range(LENGTH, 2 * LENGTH))
    rounds = 900 if isinstance(cells, Cells) else 10
    benchmark.pedantic(step, setup=lambda: ((cells, next(positions)), {}), rounds=rounds, warmup_rounds=3)


@each_table
def test_step(benchmark: BenchmarkFixture, table: Any) -> None:
    benchmark.group = f"one decoding step of {N_SEQUENCES} sequences, {N_CELLS} cells"
    run_steps(benchmark, step, filled(table))


@each_table
def test_window_step(benchmark: BenchmarkFixture, table: Any) -> None:
    benchmark.group = f"one decoding step of {N_SEQUENCES} sequences with windows, {N_CELLS} cells"
    run_steps(benchmark, window_step, filled(table, window=WINDOW))


def test_window_step_among_idle(benchmark: BenchmarkFixture) -> None:
    benchmark.group = f"the same beside {N_IDLE} idle sequences of a token each"
    cells = filled(Cells, window=WINDOW)
    idle = np.arange(N_SEQUENCES, N_SEQUENCES + N_IDLE, dtype=np.int32)
    first = np.zeros(N_IDLE, dtype=np.int32)
    cells.place(cells.find_places(first, idle), first, idle)
    run_steps(benchmark, window_step, cells)


@each_table
@pytest.mark.parametrize("question", ["room", "usage"])
def test_room(benchmark: BenchmarkFixture, table: Any, question: str) -> None:
    benchmark.group = f"{question}: with what windows would free, asked in each step"
    cells = filled(table, window=WINDOW)
    cells.slide()
    window_step(cells, LENGTH)
    benchmark(getattr(cells, question))


@each_table
def test_prompt(benchmark: BenchmarkFixture, table: Any) -> None:
    benchmark.group = "places for a prompt of 512 tokens"
    cells = filled(table)
    batch = np.arange(512, dtype=np.int32), np.zeros(512, dtype=np.int32)
    cells.remove(0)
    benchmark(cells.find_places, *batch)


@each_table
def test_share_and_remove(benchmark: BenchmarkFixture, table: Any) -> None:
    benchmark.group = "a prefix of 2000 tokens is shared, and removed again"
    cells = filled(table, 16, 4096)

    def share_and_remove() -> None:
        cells.share(7, 60, 2000)
        cells.remove(60)

    benchmark(share_and_remove)


@each_table
def test_resume(benchmark: BenchmarkFixture, table: Any) -> None:
    benchmark.group = "is all of a sequence there?"
    cells = filled(table)
    benchmark(cells.has_all, 7, 0, LENGTH)


@each_table
def test_shift_plan(benchmark: BenchmarkFixture, table: Any) -> None:
    benchmark.group = "a plan to shift 8192 cells, half of them shared"
    cells = filled(table, 8, 8200)
    cells.share(3, 50, 4100)
    benchmark(cells.shift_plan, 3, 4, 4)
