"""How fast is a whole model, beside llama.cpp? Prompts, answers, eight callers at once, and a process as a whole.

The file that OLLAMA_ENGINE_BENCH_MODEL names, or the demo, by `ollama-engine bench` and llama.cpp's own programs in
turn, as `bench/peers.py compare` does it: medians of three rounds, seconds for a token. Run:
`python -m pytest bench/bench_engine.py --benchmark-enable --benchmark-group-by=group`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench import peer_single, peer_streams
from bench.peer_llama import MISSING
from bench.peer_tools import has_tool
from bench.reported import report

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

PROMPT, ANSWER = 512, 64
STREAMS_PROMPT, STREAMS_ANSWER, WIDTHS = 64, 32, (1, 8)
Figures = dict[str, dict[str, float]]
"""{side: {figure: value}}"""

pytestmark = pytest.mark.timeout(3600)
each_side = pytest.mark.parametrize("side", ["ours", pytest.param("llama_cpp", marks=pytest.mark.peer)])


@pytest.fixture(scope="module")
def rounds(request: pytest.FixtureRequest) -> int:
    """One where nothing is measured, only tried."""
    return 3 if request.config.getoption("--benchmark-enable") else 1


@pytest.fixture(scope="module")
def threads(rounds: int) -> int:
    """All CPUs; threads that wait for each other on a busy machine are not tried."""
    return (os.cpu_count() or 1) if rounds > 1 else 1


@pytest.fixture(scope="module")
def single(given_model: str, rounds: int, threads: int) -> Figures:
    """One caller."""
    ask = peer_single.Ask(given_model, PROMPT, ANSWER, threads)
    if has_tool("llama-bench"):
        with failing():
            found: dict[str, Any] = peer_single.compare(ask, rounds)
        return {side: found[side] for side in ("ours", "llama_cpp")}
    runs = [peer_single.measure_ours(ask) for _ in range(rounds)]
    return {"ours": asdict(peer_single.medians(runs))}


@pytest.fixture(scope="module")
def streams(given_model: str, rounds: int, threads: int) -> dict[int, Figures]:
    """By number of callers. The peer is the faster of its two variants."""
    load = peer_streams.Load(given_model, STREAMS_PROMPT, STREAMS_ANSWER, WIDTHS, threads)
    if not has_tool("llama-batched-bench"):
        runs = [peer_streams.measure_ours(load) for _ in range(rounds)]
        return {width: {"ours": asdict(peer_streams.medians([run[width] for run in runs]))} for width in WIDTHS}
    with failing():
        found = peer_streams.compare(load, rounds)
    return {row["streams"]: {"ours": row["ours"], "llama_cpp": _faster(row)} for row in found["parallel"]}


@contextmanager
def failing() -> Iterator[None]:
    """A program that ended badly fails a benchmark; it does not end the run."""
    try:
        yield
    except SystemExit as error:
        pytest.fail(str(error), pytrace=False)


def _faster(row: dict[str, Any]) -> dict[str, float]:
    variants = (row["llama_cpp"], row["llama_cpp_unified"])
    return {name: max(variant[name] for variant in variants) for name in row["ours"]}


def figure(figures: Figures, side: str, name: str) -> float:
    if side not in figures:
        pytest.skip(MISSING)
    return figures[side][name]


@each_side
def test_prefill(benchmark: BenchmarkFixture, single: Figures, given_model: str, side: str) -> None:
    benchmark.group = f"a token of a prompt of {PROMPT}, {Path(given_model).name}"
    report(benchmark, 1 / figure(single, side, "prefill_tps"))


@each_side
def test_decode(benchmark: BenchmarkFixture, single: Figures, given_model: str, side: str) -> None:
    benchmark.group = f"a token of an answer of {ANSWER}, {Path(given_model).name}"
    report(benchmark, 1 / figure(single, side, "decode_tps"))


@each_side
def test_short_run(benchmark: BenchmarkFixture, single: Figures, given_model: str, side: str) -> None:
    benchmark.group = f"a process that loads, answers one token and ends, {Path(given_model).name}"
    report(benchmark, figure(single, side, "short_run_seconds"))


@each_side
@pytest.mark.parametrize("width", WIDTHS)
def test_streams(
    benchmark: BenchmarkFixture, streams: dict[int, Figures], given_model: str, width: int, side: str
) -> None:
    benchmark.group = f"a token of any of {width} answers at once, {Path(given_model).name}"
    report(benchmark, 1 / figure(streams[width], side, "decode_tps"))
