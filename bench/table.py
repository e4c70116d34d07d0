"""The one table of a run, for a terminal or as Markdown."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.rows import Answer, Row

FOLDER = Path(__file__).resolve().parent
HEADINGS = ("question", "ours", "twin", "peer", "vs twin", "vs peer")
BOLD, PLAIN = "\x1b[1m", "\x1b[0m"
QUESTION_WIDTH = 76


@dataclass(frozen=True)
class Line:
    """A row of the table, or a heading where there are no cells."""

    title: str
    cells: tuple[str, ...] = ()


def lines(answers: Sequence[Answer]) -> Iterator[Line]:
    """A heading for each file: the question that its docstring asks."""
    file = question = None
    for answer in answers:
        if answer.ours.file != file:
            file = answer.ours.file
            yield Line(question_of(FOLDER / file))
        if answer.label and answer.ours.question != question:
            yield Line(f"  {answer.ours.question}")
        question = answer.ours.question
        title = f"    {answer.label}" if answer.label else f"  {question}"
        yield Line(title, tuple(_cells(answer)))


def _cells(answer: Answer) -> Iterator[str]:
    for row in (answer.ours, answer.twin, answer.peer):
        yield duration(row.seconds) if row else "-"
    for other in (answer.twin, answer.peer):
        yield times(answer.times_as_fast(other))


def question_of(path: Path) -> str:
    """The first sentence of a file's docstring; its name where there is none."""
    if not path.exists():
        return path.name
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or path.name
    first = " ".join(said.split("\n\n")[0].split())
    return first.split("? ")[0].removesuffix("?") + "?" if "?" in first else first.split(". ")[0].removesuffix(".")


def duration(seconds: float) -> str:
    """Three figures, in the unit that suits."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1:
            value = seconds * factor
            digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
            return f"{value:.{digits}f} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def times(factor: float | None) -> str:
    """How many times as fast as the other."""
    return "-" if factor is None else f"{factor:.2f}x" if factor < 9.995 else f"{factor:.0f}x"


# -- forms -------------------------------------------------------------------------------------------------------------


def terminal(table: Sequence[Line], *, colours: bool) -> str:
    """Columns side by side; questions that are too long go on in the next line's place."""
    cells = [HEADINGS[1:], *(line.cells for line in table if line.cells)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(HEADINGS) - 1)]
    first = min(QUESTION_WIDTH, max(len(line.title) for line in table if line.cells))
    head = HEADINGS[0].ljust(first) + _joined(HEADINGS[1:], widths)
    out = [_styled(head, BOLD, colours), "-" * len(head)]
    for line in table:
        if not line.cells:
            is_file = not line.title.startswith(" ")
            out += [""] * is_file + [_styled(line.title, BOLD, colours and is_file)]
            continue
        if len(line.title) > first:
            out.append(line.title)
        title = line.title if len(line.title) <= first else ""
        out.append(title.ljust(first) + _joined(line.cells, widths))
    return "\n".join(line.rstrip() for line in out)


def _joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "".join(f"  {cell.rjust(width)}" for cell, width in zip(cells, widths, strict=True))


def _styled(text: str, style: str, wanted: bool) -> str:
    return f"{style}{text}{PLAIN}" if wanted and style else text


def markdown(table: Sequence[Line]) -> str:
    """For docs: headings stand in the first column."""
    out = [f"| {' | '.join(HEADINGS)} |", "|---|" + "---:|" * (len(HEADINGS) - 1)]
    for line in table:
        title = line.title.strip() if line.title.startswith(" ") else f"**{line.title}**"
        out.append(f"| {' | '.join([title, *(line.cells or [''] * (len(HEADINGS) - 1))])} |")
    return "\n".join(out)


def footnotes(rows: Sequence[Row], answers: Sequence[Answer]) -> list[str]:
    """Notes for a reader of the table."""
    found = [f"{len(answers)} rows; 'vs' says how many times as fast; rows are the fastest of their rounds"]
    if not any(row.side == "peer" for row in rows):
        found.append("no peer was measured: `python bench/peers.py build` builds llama.cpp's tools")
    return found
