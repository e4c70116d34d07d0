"""bench/rows.py: what a run's file says, and which rows answer the same question."""

from __future__ import annotations

from typing import Any

import pytest

from bench.rows import Row, answers, from_json


def entry(name: str, group: str | None = "g", *, side: str = "ours", **extra: Any) -> dict[str, Any]:
    """One benchmark as pytest-benchmark writes it."""
    stats = {"min": 2e-3, "median": 3e-3}
    noted = {"side": side, "calibration_s": 1e-3, **extra}
    test = name.split("::", 1)[1]
    return {"fullname": name, "name": test, "group": group, "stats": stats, "extra_info": noted}


def row(name: str, question: str = "q", side: str = "ours", seconds: float = 1.0) -> Row:
    return Row(f"bench_a.py::{name}", question, side, seconds, 0.5)


def test_a_row() -> None:
    (found,) = from_json({"benchmarks": [entry("bench/bench_a.py::test_b[x/y::z]")]})
    assert found == Row("bench_a.py::test_b[x/y::z]", "g", "ours", 2e-3, 1e-3)
    assert found.file == "bench_a.py"


def test_a_reported_figure_replaces_the_time() -> None:
    (found,) = from_json({"benchmarks": [entry("bench/bench_a.py::test_b", None, seconds=0.25)]})
    assert (found.seconds, found.question) == (0.25, "test_b")


def test_a_run_without_sides_is_refused() -> None:
    with pytest.raises(ValueError, match="test_b has no side or no calibration"):
        from_json({"benchmarks": [entry("bench/bench_a.py::test_b", side="theirs")]})


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("bench_a.py::test_one_step", "one step"),
        ("bench_a.py::test_one_step[2-x y]", "one step [2-x y]"),
        ("bench_a.py::TestOne::test_set[16]", "set [16]"),
    ],
)
def test_labels(name: str, label: str) -> None:
    assert Row(name, "q", "ours", 1.0, 1.0).label == label


def test_a_twin_and_a_peer_belong_to_all_rows_of_their_question() -> None:
    rows = [
        row("test_a"), row("test_b", seconds=4.0), row("test_t", side="twin", seconds=8.0),
        row("test_p", side="peer", seconds=2.0), row("test_c", "other"),
    ]  # fmt: skip
    first, second, other = answers(rows)
    assert (first.label, second.label, other.label) == ("a", "b", "")
    assert [first.times_as_fast(first.twin), second.times_as_fast(second.peer)] == [8.0, 0.5]
    assert (other.twin, other.times_as_fast(other.peer)) == (None, None)


def test_the_same_question_of_two_files_is_two() -> None:
    twin = Row("bench_b.py::test_t", "q", "twin", 1.0, 1.0)
    (answer,) = answers([row("test_a"), twin])
    assert answer.twin is None


def test_two_twins_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"one twin, but bench_a.py::test_a, bench_a.py::test_b answer 'q'"):
        answers([row("test_o"), row("test_a", side="twin"), row("test_b", side="twin")])
