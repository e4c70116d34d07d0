"""Figures and tables for people."""

from __future__ import annotations

import pytest

from ollama_engine.cli.tables import count, pairs, printable, table


@pytest.mark.parametrize(
    ("number", "text"),
    [(999, "999"), (1000, "1.00 K"), (999_999, "1000 K"), (50_800_000, "50.8 M"), (7 * 10**9, "7.00 B")],
)
def test_count(number: int, text: str) -> None:
    assert count(number) == text


def test_columns_line_up() -> None:
    assert table([("a", "bb", "c"), ("aaa", "b", "")], right=(1,)) == "a    bb  c\naaa   b"
    assert pairs([("x", "1"), ("absent", None), ("long", "2")]) == "x     1\nlong  2"


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert printable("a\x1b[2J\nb\tü\udc80") == "a\\x1b[2J\\nb\\tü\\udc80"
    assert "\x1b" not in table([("\x1b[31m",)])
