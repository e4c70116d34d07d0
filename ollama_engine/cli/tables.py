"""Figures and tables for people: columns that line up, counts in units, text without control characters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["ago", "count", "number_of", "pairs", "printable", "span", "table"]


def ago(seconds: float) -> str:
    """How long ago: "3 days ago"."""
    return "now" if seconds < 1 else f"{span(seconds)} ago"


def span(seconds: float) -> str:
    """A duration in its largest unit: "3 days"."""
    for unit, name in ((365 * 86400, "year"), (30 * 86400, "month"), (7 * 86400, "week"), (86400, "day"),
                       (3600, "hour"), (60, "minute")):  # fmt: skip
        if seconds >= unit:
            return _counted(int(seconds // unit), name)
    return _counted(int(seconds), "second")


def _counted(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


def count(number: int) -> str:
    """A count in a unit that people read: 640, 4.13 M, 1.24 B."""
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= unit:
            amount = number / unit
            return f"{amount:.{0 if amount >= 100 else 1 if amount >= 10 else 2}f} {name}"
    return str(number)


def printable(text: str) -> str:
    """The text with control characters escaped: text from a file must not control the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def table(rows: Iterable[Sequence[str]], right: Sequence[int] = (), *, gap: int = 2) -> str:
    """Rows as columns `gap` spaces apart, those numbered in `right` aligned to the right."""
    lines = [tuple(map(printable, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = (
        (cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    )
    return "\n".join((" " * gap).join(cells).rstrip() for cells in padded)


def pairs(rows: Iterable[tuple[str, str | None]]) -> str:
    """Names and values; a row whose value is None is left out."""
    return table((name, value) for name, value in rows if value is not None)


def number_of(n: int, noun: str) -> str:
    """A number with its noun: "1 model", "2 models"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
