"""Metrics: counts, rates over a window, and readers beside the writer."""

from __future__ import annotations

import threading
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_engine.runner.observe.metrics import CellCounts, Histogram, Metrics, Rate
from tests.support.waiting import join


def test_nothing_yet() -> None:
    got = Metrics().snapshot(5.0)
    assert (got.steps, got.prompt_tokens, got.completion_tokens, got.queued) == (0, 0, 0, 0)
    assert (got.graph_reuse_rate, got.prompt_tokens_per_second, got.completion_tokens_per_second) == (0, 0, 0)
    assert (got.step_seconds.count, got.step_seconds.mean, got.step_seconds.quantile(0.5)) == (0, 0, 0)
    assert set(got.requests.values()) == {0}


def test_counts() -> None:
    metrics = Metrics()
    metrics.step(1.0, 0.5, prompt_tokens=100, completion_tokens=1, graph_reused=False)
    metrics.step(2.0, 0.25, prompt_tokens=0, completion_tokens=3, graph_reused=True)
    metrics.gauges(queued=2, running=3, cells=CellCounts(used=10, free=22, shared=4))
    metrics.count(cached_tokens=7, preemptions=1)
    metrics.count(cached_tokens=1, evictions=2, shifts=3)
    metrics.ended("generation", "stop")
    metrics.ended("embedding", "stop")
    metrics.ended("generation", "rejected")
    got = metrics.snapshot(2.0)
    assert (got.steps, got.graphs_built, got.graphs_reused, got.graph_reuse_rate) == (2, 1, 1, 0.5)
    assert (got.prompt_tokens, got.completion_tokens, got.cached_tokens) == (100, 4, 8)
    assert (got.queued, got.running, got.cells) == (2, 3, CellCounts(10, 22, 4))
    assert (got.preemptions, got.evictions, got.shifts) == (1, 2, 3)
    assert {outcome: n for outcome, n in got.requests.items() if n} == {"stop": 2, "rejected": 1}
    by_kind = {kind: {outcome: n for outcome, n in ends.items() if n} for kind, ends in got.requests_by_kind.items()}
    assert by_kind == {"generation": {"stop": 1, "rejected": 1}, "scoring": {}, "embedding": {"stop": 1}}
    assert (got.step_seconds.count, got.step_seconds.total, got.step_seconds.maximum) == (2, 0.75, 0.5)
    # Both began at second 1.
    assert got.completion_tokens_per_second == pytest.approx(4.0)
    assert got.prompt_tokens_per_second == pytest.approx(100.0)


def test_a_snapshot_stays_as_it_is() -> None:
    metrics = Metrics()
    got = metrics.snapshot(0.0)
    metrics.ended("generation", "stop")
    metrics.step(1.0, 0.5, prompt_tokens=1, completion_tokens=1, graph_reused=False)
    assert (got.steps, got.requests["stop"], got.step_seconds.count) == (0, 0, 0)
    with pytest.raises(FrozenInstanceError):
        got.steps = 1  # type: ignore[misc]
    got.requests["stop"] = 7  # type: ignore[index]
    assert metrics.snapshot(0.0).requests["stop"] == 1, "each has dicts of its own"


def test_an_outcome_that_there_is_none_of() -> None:
    with pytest.raises(ValueError, match="outcomes are stop, length"):
        Metrics().ended("scoring", "done")  # type: ignore[arg-type]


def test_quantiles_are_upper_bounds() -> None:
    histogram = Histogram((1.0, 2.0, 5.0), (5, 4, 0, 1), 20.0, 8.0)
    assert [histogram.quantile(q) for q in (0, 0.5, 0.51, 0.9, 0.95, 1)] == [1.0, 1.0, 2.0, 2.0, 8.0, 8.0]
    assert histogram.mean == 2.0
    assert Histogram((1.0, 2.0), (3, 0, 0), 0.3, 0.2).quantile(0.5) == 0.2
    with pytest.raises(ValueError, match="0 to 1"):
        histogram.quantile(95)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50), st.floats(0, 1))
def test_quantiles_hold(seconds: list[float], q: float) -> None:
    metrics = Metrics()
    for now, duration in enumerate(seconds):
        metrics.step(now, duration, prompt_tokens=0, completion_tokens=1, graph_reused=True)
    bound = metrics.snapshot(0).step_seconds.quantile(q)
    assert sum(duration <= bound for duration in seconds) >= q * len(seconds) - 1e-9
    assert bound <= max(seconds)


def test_rate_forgets() -> None:
    rate = Rate(10.0)
    rate.add(0.0, 50)
    assert rate.per_second(5.0) == 10.0
    assert rate.per_second(9.4) == pytest.approx(50 / 9.4)
    assert rate.per_second(10.1) == 0.0
    rate.add(100.0, 5)
    assert rate.per_second(100.4) == pytest.approx(5 / 9.9)
    rate.add(99.0, 5)  # out of order: counts as the latest
    assert rate.per_second(100.4) == pytest.approx(10 / 9.9)
    with pytest.raises(ValueError, match="longer than 0"):
        Rate(0.0)


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 20)), min_size=1, max_size=60), st.floats(0, 30))
def test_rate_against_the_definition(counts: list[tuple[float, int]], after: float) -> None:
    """Within one bucket: between the sums over the window and over a window that is a twentieth shorter."""
    rate, now = Rate(10.0), 7.0
    times = []
    for pause, n in counts:
        now += pause
        rate.add(now, n)
        times.append((now, n))
    end = now + after
    covered = max(0.5, min(10.0, end - times[0][0]))
    got = rate.per_second(end)
    assert got * 9.5 <= sum(n for time, n in times if time >= end - 10.0 - 1e-6) * 10.0 / min(covered, 9.5) + 1e-6
    assert got >= sum(n for time, n in times if time > end - 9.5 + 1e-6) / 10.0 - 1e-6


def test_readers_beside_the_writer() -> None:
    """Each snapshot is consistent within itself: every step adds one of everything."""
    metrics = Metrics()
    done = threading.Event()
    wrong = []

    def read() -> None:
        while not done.is_set():
            got = metrics.snapshot(1.0)
            if not got.steps == got.step_seconds.count == got.completion_tokens == got.prompt_tokens:
                wrong.append(got)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(5000):
        metrics.step(1.0, 0.01, prompt_tokens=1, completion_tokens=1, graph_reused=True)
    done.set()
    join(*readers)
    assert not wrong
    assert metrics.snapshot(1.0).steps == 5000
