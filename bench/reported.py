"""Figures that a program reports, or that are the difference of two, on the board like those that are timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture


def report(benchmark: BenchmarkFixture, seconds: float) -> None:
    """Put `seconds` on the board in place of a time that pytest-benchmark takes."""
    benchmark.extra_info["seconds"] = seconds
    benchmark.pedantic(lambda: None, rounds=1)


def shortest(work: Callable[[], object], rounds: int, *, warm: bool = False) -> float:
    """Seconds of the fastest round; with `warm` behind one that is not counted."""
    if warm:
        work()
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)
