"""What does a mask cost? As attention reads it, f16, written into existing memory: prompts and decoding rows, with and
without windows; in C beside the numpy twin of the tests.

Groups are questions; within one the rows compare. Run:
`python -m pytest bench/bench_masks.py --benchmark-enable --benchmark-only`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ollama_engine.kvcache.cells import Cells
from ollama_engine.kvcache.visibility import Visibility
from tests.kvcache.cells_twin import CellsTwin

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

TABLES = [pytest.param(Cells, id="C"), pytest.param(CellsTwin, id="numpy", marks=pytest.mark.twin)]
LIMITS = {
    "causal": Visibility(),
    "window 1024": Visibility(window=1024),
    "chunk 2048": Visibility(chunk=2048),
}
each_table = pytest.mark.parametrize("table", TABLES)
each_limit = pytest.mark.parametrize("limit", LIMITS)


def filled(table: Any, n_cells: int, sequences: int) -> Any:
    """All cells are used; sequences have them by turns."""
    cells = table(n_cells)
    every = np.arange(n_cells, dtype=np.int32)
    cells.place(every, every // np.int32(sequences), every % np.int32(sequences))
    return cells


def measure(benchmark: BenchmarkFixture, cells: Any, sequences: Any, first: Any, last: Any) -> None:
    """The twin's way is what was done before: booleans, then a choice of two numbers."""
    n = len(cells)
    if isinstance(cells, CellsTwin):
        zero, infinity = np.float16(0), np.float16(-np.inf)
        benchmark(lambda: np.where(cells.visible(0, n, sequences, first, last), zero, infinity))
        return
    mask = np.empty((len(sequences), n), dtype=np.float16)
    benchmark(cells.fill_mask, 0, sequences, first, last, mask)


@each_table
@each_limit
def test_prompt(benchmark: BenchmarkFixture, table: Any, limit: str) -> None:
    benchmark.group = f"512 rows of a prompt over 8192 cells, {limit}"
    last = np.arange(8192 - 512, 8192, dtype=np.int32)
    sequences = np.zeros(512, dtype=np.int32)
    measure(benchmark, filled(table, 8192, 1), sequences, LIMITS[limit].first(last), last)


@each_table
@pytest.mark.parametrize("blocks", [1, 2])
def test_image(benchmark: BenchmarkFixture, table: Any, blocks: int) -> None:
    benchmark.group = f"512 rows over 8192 cells that see each other in {blocks} blocks"
    own = np.arange(8192 - 512, 8192, dtype=np.int32)
    last = np.repeat(own.reshape(blocks, -1)[:, -1], 512 // blocks)
    measure(benchmark, filled(table, 8192, 1), np.zeros(512, dtype=np.int32), Visibility().first(own), last)


@each_table
@each_limit
@pytest.mark.parametrize("sequences", [1, 64])
def test_row(benchmark: BenchmarkFixture, table: Any, limit: str, sequences: int) -> None:
    benchmark.group = f"one decoding row over 131072 cells of {sequences} sequences, {limit}"
    last = np.array([131_072 // sequences - 1], dtype=np.int32)
    row = np.zeros(1, dtype=np.int32)
    measure(benchmark, filled(table, 131_072, sequences), row, LIMITS[limit].first(last), last)


@each_table
def test_step(benchmark: BenchmarkFixture, table: Any) -> None:
    benchmark.group = "64 decoding rows over 8192 cells of 64 sequences"
    last = np.full(64, 127, dtype=np.int32)
    rows = np.arange(64, dtype=np.int32)
    measure(benchmark, filled(table, 8192, 64), rows, Visibility().first(last), last)
