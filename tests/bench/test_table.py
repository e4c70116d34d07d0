"""bench/table.py: what a reader sees."""

from __future__ import annotations

import pytest

from bench import table
from bench.rows import Row, answers

ROWS = [
    Row("bench_cells.py::test_step[C]", "one step", "ours", 16e-6, 1e-3),
    Row("bench_cells.py::test_step[numpy]", "one step", "twin", 160e-6, 1e-3),
    Row("bench_nowhere.py::test_a", "several", "ours", 2.0, 1e-3),
    Row("bench_nowhere.py::test_b", "several", "ours", 0.5, 1e-3),
    Row("bench_nowhere.py::test_p", "several", "peer", 1.0, 1e-3),
]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.0, "2.00 s"), (0.0123, "12.3 ms"), (456e-6, "456 us"), (9.996e-6, "10.0 us"), (12e-9, "12 ns")],
)
def test_durations(seconds: float, text: str) -> None:
    assert table.duration(seconds) == text


def test_terminal() -> None:
    shown = table.terminal(list(table.lines(answers(ROWS))), colours=False).splitlines()
    assert [line.split() for line in shown[2:]] == [
        [],
        ["What", "does", "the", "cell", "table", "cost?"],
        ["one", "step", "16.0", "us", "160", "us", "-", "10x", "-"],
        [],
        ["bench_nowhere.py"],
        ["several"],
        ["a", "2.00", "s", "-", "1.00", "s", "-", "0.50x"],
        ["b", "500", "ms", "-", "1.00", "s", "-", "2.00x"],
    ]
    columns = {line.index("us  ") for line in shown if "one step" in line}
    assert columns == {shown[0].index("ours") + 2}, "cells stand below their headings"


def test_colours_change_no_letter() -> None:
    lines = list(table.lines(answers(ROWS)))
    coloured = table.terminal(lines, colours=True)
    for code in (table.BOLD, table.PLAIN):
        coloured = coloured.replace(code, "")
    assert [line.rstrip() for line in coloured.splitlines()] == table.terminal(lines, colours=False).splitlines()


def test_long_questions_have_a_line_of_their_own() -> None:
    long = Row("bench_cells.py::test_step[C]", "w" * 100, "ours", 1.0, 1.0)
    shown = table.terminal(list(table.lines(answers([long]))), colours=False).splitlines()
    assert shown[-2].strip() == "w" * 100
    assert shown[-1].split()[:2] == ["1.00", "s"]


def test_markdown() -> None:
    shown = table.markdown(list(table.lines(answers(ROWS)))).splitlines()
    assert shown[2] == "| **What does the cell table cost?** |  |  |  |  |  |"
    assert shown[3] == "| one step | 16.0 us | 160 us | - | 10x | - |"
    assert {line.count("|") for line in shown} == {7}


def test_footnotes() -> None:
    assert table.footnotes(ROWS, answers(ROWS)) == [
        "3 rows; 'vs' says how many times as fast; rows are the fastest of their rounds"
    ]
    without = [row for row in ROWS if row.side != "peer"]
    assert "no peer was measured" in table.footnotes(without, answers(without))[-1]
