"""The one table of a run, for a terminal or as Markdown."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.rows import Answer, Row
from bench.targets import Target

FOLDER = Path(__file__).resolve().parent
HEADINGS = ("question", "ours", "twin", "peer", "vs twin", "vs peer", "target", "met")
VERDICTS = {True: "yes", False: "NO", None: "-"}
COLOURS = {"yes": "\x1b[32m", "NO": "\x1b[31;1m"}
BOLD, PLAIN = "\x1b[1m", "\x1b[0m"
QUESTION_WIDTH = 76


@dataclass(frozen=True)
class Line:
    """A row of the table, or a heading where there are no cells."""

    title: str
    cells: tuple[str, ...] = ()


def lines(answers: Sequence[Answer], targets: Mapping[str, Target]) -> Iterator[Line]:
    """A heading for each file: the question that its docstring asks."""
    file = question = None
    for answer in answers:
        if answer.ours.file != file:
            file = answer.ours.file
            yield Line(asked(FOLDER / file))
        if answer.label and answer.ours.question != question:
            yield Line(f"  {answer.ours.question}")
        question = answer.ours.question
        title = f"    {answer.label}" if answer.label else f"  {question}"
        yield Line(title, tuple(_cells(answer, targets.get(answer.ours.name))))


def _cells(answer: Answer, target: Target | None) -> Iterator[str]:
    for row in (answer.ours, answer.twin, answer.peer):
        yield duration(row.seconds) if row else "-"
    for other in (answer.twin, answer.peer):
        yield times(answer.times_as_fast(other))
    yield wanted(target)
    yield VERDICTS[target.met(answer)] if target else ""


def asked(path: Path) -> str:
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


def wanted(target: Target | None) -> str:
    if target is None:
        return ""
    if target.seconds is not None:
        return f"<= {duration(target.seconds)}"
    if target.over_twin is not None:
        return f"<= twin + {duration(target.over_twin)}"
    return f">= {target.times_peer:g}x peer"


# -- forms -------------------------------------------------------------------------------------------------------------


def terminal(table: Sequence[Line], *, colours: bool) -> str:
    """Columns side by side; questions that are too long go on in the next line's place."""
    cells = [HEADINGS[1:], *(line.cells for line in table if line.cells)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(HEADINGS) - 1)]
    first = min(QUESTION_WIDTH, max(len(line.title) for line in table if line.cells))
    head = HEADINGS[0].ljust(first) + _joined(HEADINGS[1:], widths, colours=False)
    out = [_styled(head, BOLD, colours), "-" * len(head)]
    for line in table:
        if not line.cells:
            is_file = not line.title.startswith(" ")
            out += [""] * is_file + [_styled(line.title, BOLD, colours and is_file)]
            continue
        if len(line.title) > first:
            out.append(line.title)
        title = line.title if len(line.title) <= first else ""
        out.append(title.ljust(first) + _joined(line.cells, widths, colours=colours))
    return "\n".join(line.rstrip() for line in out)


def _joined(cells: Sequence[str], widths: Sequence[int], *, colours: bool) -> str:
    padded = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    return "".join(f"  {_styled(text, COLOURS.get(text.strip(), ''), colours)}" for text in padded)


def _styled(text: str, style: str, wanted: bool) -> str:
    return f"{style}{text}{PLAIN}" if wanted and style else text


def markdown(table: Sequence[Line]) -> str:
    """For docs: headings stand in the first column."""
    out = [f"| {' | '.join(HEADINGS)} |", "|---|" + "---:|" * (len(HEADINGS) - 1)]
    for line in table:
        title = line.title.strip() if line.title.startswith(" ") else f"**{line.title}**"
        out.append(f"| {' | '.join([title, *(line.cells or [''] * (len(HEADINGS) - 1))])} |")
    return "\n".join(out)


def footnotes(rows: Sequence[Row], answers: Sequence[Answer], targets: Mapping[str, Target]) -> list[str]:
    """What a reader of the table must know: what was missed, and what was not measured at all."""
    known = {answer.ours.name: answer for answer in answers}
    found = [f"{len(answers)} rows; 'vs' says how many times as fast; rows are the fastest of their rounds"]
    missed = [name for name, target in targets.items() if name in known and target.met(known[name]) is False]
    if missed:
        found.append(f"{len(missed)} targets missed: {', '.join(missed)}")
    absent = [name for name in targets if name not in known]
    if absent:
        found.append(f"not measured, though there is a target: {', '.join(absent)}")
    if not any(row.side == "peer" for row in rows):
        found.append("no peer was measured: `python bench/peers.py build` builds llama.cpp's tools")
    return found
