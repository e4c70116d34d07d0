"""bench/table.py and bench/targets.py: what a reader sees, and whether a target is met."""

from __future__ import annotations

import pytest

from bench import table
from bench.rows import Answer, Row, answers
from bench.targets import Target, us

ROWS = [
    Row("bench_cells.py::test_step[C]", "one step", "ours", 16e-6, 1e-3),
    Row("bench_cells.py::test_step[numpy]", "one step", "twin", 160e-6, 1e-3),
    Row("bench_nowhere.py::test_a", "several", "ours", 2.0, 1e-3),
    Row("bench_nowhere.py::test_b", "several", "ours", 0.5, 1e-3),
    Row("bench_nowhere.py::test_p", "several", "peer", 1.0, 1e-3),
]
TARGETS = {
    "bench_cells.py::test_step[C]": us(20),
    "bench_nowhere.py::test_a": Target(times_peer=1.0),
    "bench_nowhere.py::test_gone": us(1),
}


def answer(ours: float, twin: float | None = None, peer: float | None = None) -> Answer:
    def row(side: str, seconds: float | None) -> Row | None:
        return None if seconds is None else Row("bench_a.py::test_a", "q", side, seconds, 1.0)

    first = row("ours", ours)
    assert first is not None
    return Answer(first, "", row("twin", twin), row("peer", peer))


@pytest.mark.parametrize(
    ("target", "found", "met"),
    [
        (us(20), answer(20e-6), True),
        (us(20), answer(21e-6), False),
        (Target(times_peer=1.2), answer(1.0, peer=1.2), True),
        (Target(times_peer=1.2), answer(1.0, peer=1.1), False),
        (Target(times_peer=1.2), answer(1.0), None),
        (Target(over_twin=0.5), answer(1.5, twin=1.0), True),
        (Target(over_twin=0.5), answer(1.75, twin=1.0), False),
        (Target(over_twin=0.5), answer(1.75), None),
    ],
)
def test_targets(target: Target, found: Answer, met: bool | None) -> None:
    assert target.met(found) is met


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.0, "2.00 s"), (0.0123, "12.3 ms"), (456e-6, "456 us"), (9.996e-6, "10.0 us"), (12e-9, "12 ns")],
)
def test_durations(seconds: float, text: str) -> None:
    assert table.duration(seconds) == text


def test_terminal() -> None:
    shown = table.terminal(list(table.lines(answers(ROWS), TARGETS)), colours=False).splitlines()
    assert [line.split() for line in shown[2:]] == [
        [],
        ["What", "does", "the", "cell", "table", "cost?"],
        ["one", "step", "16.0", "us", "160", "us", "-", "10x", "-", "<=", "20.0", "us", "yes"],
        [],
        ["bench_nowhere.py"],
        ["several"],
        ["a", "2.00", "s", "-", "1.00", "s", "-", "0.50x", ">=", "1x", "peer", "NO"],
        ["b", "500", "ms", "-", "1.00", "s", "-", "2.00x"],
    ]
    columns = {line.index("us  ") for line in shown if "one step" in line}
    assert columns == {shown[0].index("ours") + 2}, "cells stand below their headings"


def test_colours_change_no_letter() -> None:
    lines = list(table.lines(answers(ROWS), TARGETS))
    coloured = table.terminal(lines, colours=True)
    assert coloured.count("\x1b[31;1m") == 1
    for code in (*table.COLOURS.values(), table.BOLD, table.PLAIN):
        coloured = coloured.replace(code, "")
    assert [line.rstrip() for line in coloured.splitlines()] == table.terminal(lines, colours=False).splitlines()


def test_long_questions_have_a_line_of_their_own() -> None:
    long = Row("bench_cells.py::test_step[C]", "w" * 100, "ours", 1.0, 1.0)
    shown = table.terminal(list(table.lines(answers([long]), {})), colours=False).splitlines()
    assert shown[-2].strip() == "w" * 100
    assert shown[-1].split()[:2] == ["1.00", "s"]


def test_markdown() -> None:
    shown = table.markdown(list(table.lines(answers(ROWS), TARGETS))).splitlines()
    assert shown[2] == "| **What does the cell table cost?** |  |  |  |  |  |  |  |"
    assert shown[3] == "| one step | 16.0 us | 160 us | - | 10x | - | <= 20.0 us | yes |"
    assert {line.count("|") for line in shown} == {9}


def test_footnotes() -> None:
    notes = table.footnotes(ROWS, answers(ROWS), TARGETS)
    assert notes[1:] == [
        "1 targets missed: bench_nowhere.py::test_a",
        "not measured, though there is a target: bench_nowhere.py::test_gone",
    ]
    without = [row for row in ROWS if row.side != "peer"]
    assert "no peer was measured" in table.footnotes(without, answers(without), {})[-1]
