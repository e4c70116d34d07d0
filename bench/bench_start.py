"""How long does a process take to its first token, and on what? Starting Python, importing, loading, computing, ending.

The file that OLLAMA_ENGINE_BENCH_MODEL names, or the demo; the shortest of each stage in five processes, as
`bench/start_stages.py` takes them. Twin of the import: numpy's alone, which no import of the package can undercut. Run:
`python -m pytest bench/bench_start.py --benchmark-enable --benchmark-group-by=group`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.peer_tools import our_program, run
from bench.reported import report
from bench.start_stages import STAGES, Seconds, measure, shortest, to_first_token

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

pytestmark = pytest.mark.timeout(600)

IMPORT = "start Python and import"


@pytest.fixture(scope="module")
def rounds(request: pytest.FixtureRequest) -> int:
    """One where nothing is measured, only tried."""
    return 5 if request.config.getoption("--benchmark-enable") else 1


@pytest.fixture(scope="module")
def seconds(given_model: str, rounds: int) -> Seconds:
    """By stage. One thread: threads that wait for each other on a busy machine would say nothing."""
    return shortest([measure(given_model, threads=1) for _ in range(rounds)])


@pytest.mark.parametrize("stage", STAGES)
def test_stage(benchmark: BenchmarkFixture, seconds: Seconds, given_model: str, stage: str) -> None:
    benchmark.group = f"stages of a process, {Path(given_model).name}"
    report(benchmark, seconds[stage])


def test_first_token(benchmark: BenchmarkFixture, seconds: Seconds, given_model: str) -> None:
    benchmark.group = f"process start to first token, {Path(given_model).name}"
    report(benchmark, to_first_token(seconds))


def test_import(benchmark: BenchmarkFixture, rounds: int) -> None:
    benchmark.group = IMPORT
    command = [sys.executable, "-c", "from ollama_engine import Engine"]
    report(benchmark, min(run(command).seconds for _ in range(rounds)))


@pytest.mark.twin
def test_import_numpy(benchmark: BenchmarkFixture, rounds: int) -> None:
    benchmark.group = IMPORT
    report(benchmark, min(run([sys.executable, "-c", "import numpy"]).seconds for _ in range(rounds)))


@pytest.mark.parametrize("arguments", ["--version", "--help", "run --help"])
def test_program(benchmark: BenchmarkFixture, rounds: int, arguments: str) -> None:
    benchmark.group = "a program that only says something"
    report(benchmark, min(run([our_program(), *arguments.split()]).seconds for _ in range(rounds)))
