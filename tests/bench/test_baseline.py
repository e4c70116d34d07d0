"""bench/baseline.py and the committed baseline: what fails a check, and what is measured again before."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bench import baseline, board
from bench.baseline import Baseline, Expected, Verdict
from bench.calibration import calibrate, unit
from bench.rows import Row
from bench.targets import GATE, TARGETS

ROOT = Path(__file__).resolve().parents[2]


def row(name: str, seconds: float, *, side: str = "ours", calibration: float = 1e-3, waits: bool = False) -> Row:
    return Row(name, "q", side, seconds, calibration, waits)


def known(**ratios: float) -> Baseline:
    return Baseline("here", 1, {name: Expected(ratio, 1.0, informative=False) for name, ratio in ratios.items()})


def replay(*runs: dict[str, float]) -> tuple[Callable[[Sequence[str]], list[Row]], list[list[str]]]:
    """A measurement that gives ratios of one run after the other, and what it was asked for."""
    asked: list[list[str]] = []

    def measure(names: Sequence[str]) -> list[Row]:
        run = runs[len(asked)]
        asked.append(list(names))
        return [row(name, run[name] * 1e-3) for name in names if name in run]

    return measure, asked


def worse(verdicts: Sequence[Verdict]) -> list[str]:
    return [verdict.name for verdict in verdicts if verdict.worse]


def test_what_is_fast_enough_is_measured_once() -> None:
    measure, asked = replay({"a": 1.24, "b": 0.5})
    assert worse(baseline.check(["a", "b"], known(a=1, b=1), measure)) == []
    assert asked == [["a", "b"]]


def test_what_looks_slow_is_measured_again() -> None:
    measure, asked = replay({"a": 1.5, "b": 1.0, "c": 2.0}, {"a": 1.1, "c": 1.9}, {"c": 1.8})
    verdicts = baseline.check(["a", "b", "c"], known(a=1, b=1, c=1), measure)
    assert worse(verdicts) == ["c"]
    assert asked == [["a", "b", "c"], ["a", "c"], ["c"]]
    assert {verdict.name: verdict.change for verdict in verdicts} == pytest.approx({"a": 1.1, "b": 1.0, "c": 1.8})


def test_what_is_shown_only_never_fails() -> None:
    shown = Baseline("here", 1, {"a": Expected(1.0, 1.0, informative=True)})
    measure, asked = replay({"a": 9.0})
    assert worse(baseline.check(["a"], shown, measure)) == []
    assert len(asked) == 1


def test_rows_that_are_unknown_or_gone() -> None:
    with pytest.raises(ValueError, match="does not know b; take it again"):
        baseline.check(["a", "b"], known(a=1), lambda names: [])
    with pytest.raises(ValueError, match="b was not measured"):
        baseline.check(["a", "b"], known(a=1, b=1), replay({"a": 1.0})[0])


def test_a_slower_machine_is_no_regression() -> None:
    assert worse(baseline.judge([row("a", 3e-3, calibration=3e-3)], known(a=1))) == []


def test_one_disturbed_calibration_hides_nothing() -> None:
    rows = [row("a", 1.5e-3, calibration=5e-3), row("b", 1e-3), row("c", 1e-3)]
    assert worse(baseline.judge(rows, known(a=1, b=1, c=1))) == ["a"]


def test_the_second_best_of_several_runs() -> None:
    runs = [
        [row("a", 9e-3), row("short", 2e-6), row("w", 1.0, waits=True), row("twin", 1.0, side="twin")],
        [row("a", 2e-3), row("short", 1e-6), row("w", 1.0, waits=True)],
        [row("a", 1e-3), row("short", 3e-6), row("w", 1.0, waits=True)],
    ]
    found = baseline.collect("here", runs)
    assert found.rows == {
        "a": Expected(2.0, 2000.0, informative=False),
        "short": Expected(0.002, 2.0, informative=True),
        "w": Expected(1000.0, 1e6, informative=True),
    }


def test_the_file(tmp_path: Path) -> None:
    kept = Baseline("here", 3, {"a[x]": Expected(1.5, 2.0, informative=False), "b": Expected(1, 3, informative=True)})
    baseline.save(kept, tmp_path / "baseline.json")
    assert baseline.load(tmp_path / "baseline.json") == kept
    assert len((tmp_path / "baseline.json").read_text().splitlines()) == 8


def test_reports_name_what_is_worse() -> None:
    lines = board.report(baseline.judge([row("a", 1.5e-3), row("b", 0.9e-3)], known(a=1, b=1)))
    assert lines[:2] == ["ok      0.90 x baseline  b", "WORSE   1.50 x baseline  a"]
    assert lines[2] == "1 of 2 rows are worse than the baseline by more than 25%: a"


def test_a_check_that_fails_on_the_same_machine_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "bench_a.py::test_a"
    seconds = {"now": 3e-3}
    here = {"brand_raw": "X", "family": 1, "count": 2}
    monkeypatch.setattr(board.baseline, "machine", lambda run: known().machine if here["count"] == 2 else "another")

    def measured(names: Sequence[str]) -> dict[str, object]:
        noted = {"side": "ours", "calibration_s": 1e-3}
        found = {"fullname": f"bench/{name}", "name": "test_a", "group": "q", "extra_info": noted,
                 "stats": {"min": seconds["now"]}}  # fmt: skip
        return {"machine_info": {"cpu": here}, "benchmarks": [found]}

    monkeypatch.setattr(board, "GATE", (name,))
    monkeypatch.setattr(board, "measure_quickly", measured)
    monkeypatch.setattr(baseline, "load", lambda: known(**{name: 2.0}))
    assert board.main(["check"]) == 1
    here["count"] = 64
    assert board.main(["check"]) == 0
    assert "this is another" in capsys.readouterr().out
    here["count"], seconds["now"] = 2, 2.4e-3
    assert board.main(["check"]) == 0


# -- what is committed -------------------------------------------------------------------------------------------------


def test_the_gate_is_in_the_baseline_and_can_fail() -> None:
    rows = baseline.load().rows
    assert [name for name in GATE if name not in rows or rows[name].informative] == []
    assert all(expected.ratio > 0 for expected in rows.values())


def test_names_are_those_of_tests() -> None:
    """Benchmarks that are renamed take their targets, their place in the gate and their baseline with them."""
    command = [sys.executable, "-m", "pytest", "bench", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    there = set(re.findall(r"^bench/(\S+\.py::.*)$", done.stdout, flags=re.MULTILINE))
    assert {*GATE, *TARGETS, *baseline.load().rows} - there == set()


def test_calibration() -> None:
    times = calibrate(rounds=1)
    assert all(seconds > 0 for seconds in times)
    assert unit((1.0, 8.0, 1.0), (2.0, 1.0, 1.0)) == pytest.approx(1.0)
    assert unit((1.0, 4.0, 2.0)) == pytest.approx(2.0)
