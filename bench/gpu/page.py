"""docs/gpu.md: a section for each device that was checked, which the next check of that device replaces."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bench.gpu.speeds import Speed
from bench.gpu.suites import Suite
from bench.gpu.verdicts import Row, summary

SUMMED = 3
"""So many tiny models that pass alike share a row."""
FIGURES = ("answer", "median", "largest")
"""Of these a shared row has the worst."""
BEGIN, END = "<!-- gpu-check: {} -->", "<!-- end of gpu-check: {} -->"


@dataclass(frozen=True)
class Report:
    """All that one check found."""

    date: str
    device: str
    """ggml's name, such as "CUDA0"."""
    description: str
    """Its full name, such as "NVIDIA GeForce RTX 4090"."""
    backend: str
    versions: Sequence[str]
    command: str
    rows: Sequence[Row] = ()
    suites: Sequence[Suite] = ()
    speeds: Sequence[Speed] = ()
    notes: Sequence[str] = ()

    @property
    def passed(self) -> bool:
        return all(row.passed for row in self.rows) and all(suite.ok for suite in self.suites)


def section(report: Report) -> str:
    """The device's section, between marks that `insert` finds again."""
    name = f"{report.backend}, {report.description}"
    blocks = [
        BEGIN.format(name),
        f"### {report.description} ({report.backend})",
        _facts(report),
        *report.notes,
        *_parity(report.rows),
        *_suites(report.suites),
        *_speeds(report.speeds),
        END.format(name),
    ]
    return "\n\n".join(blocks)


def insert(text: str, new: str) -> str:
    """The page with this section in the place of the same device's, or at its end."""
    begin, end = new.split("\n", 1)[0], new.rsplit("\n", 1)[1]
    found = re.search(re.escape(begin) + ".*?" + re.escape(end), text, flags=re.DOTALL)
    if found:
        return text[: found.start()] + new + text[found.end() :]
    return text.rstrip("\n") + "\n\n" + new + "\n"


def _facts(report: Report) -> str:
    facts = [("Date", report.date), ("Device", f"{report.device}: {report.description}"),
             ("Versions", ", ".join(report.versions)), ("Command", f"`{report.command}`"),
             ("Verdict", "passed" if report.passed else "**FAILED**")]  # fmt: skip
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {_cell(value)} |" for name, value in facts)])


def _parity(rows: Sequence[Row]) -> Iterable[str]:
    if not rows:
        return
    lines = ["| Model | Setting | Tokens equal | Lead where they part | Answer | Prompt, median | largest | Limit | |",
             "|---|---|---:|---:|---:|---:|---:|---:|---|"]  # fmt: skip
    for row in _summed(rows):
        cells = [row.model, row.setting, f"{row.equal} of {row.tokens}" if row.tokens else "-", _number(row.lead),
                 _number(row.answer), _number(row.median), _number(row.largest), f"{row.limit:g}",
                 "" if row.passed else f"**FAILED** {row.error}".rstrip()]  # fmt: skip
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    yield f"Beside the CPU: {summary(rows)}."
    yield "\n".join(lines)


def _summed(rows: Sequence[Row]) -> Iterable[Row]:
    """The rows, but one for all tiny models that pass alike: their number, and the worst of each figure."""
    groups: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        if row.passed and row.model.startswith("tiny "):
            groups.setdefault((row.setting, row.limit), []).append(row)
    summed = {key: group for key, group in groups.items() if len(group) >= SUMMED}
    for row in rows:
        group = summed.get((row.setting, row.limit), [])
        if row not in group:
            yield row
        elif row is group[0]:
            yield replace(
                row, model=f"tiny models: {len(group)}", equal=sum(each.equal for each in group),
                tokens=sum(each.tokens for each in group),
                **{name: max(getattr(each, name) or 0.0 for each in group) for name in FIGURES},
                lead=max((each.lead for each in group if each.lead is not None), default=None),
            )  # fmt: skip


def _suites(suites: Sequence[Suite]) -> Iterable[str]:
    if not suites:
        return
    lines = ["| Suite, on the device | passed | failed | skipped |", "|---|---:|---:|---:|"]
    for suite in suites:
        name = _cell(f"`{suite.name}` {suite.error}".rstrip())
        lines.append(f"| {name} | {suite.passed} | {len(suite.failed)} | {suite.skipped} |")
    yield "\n".join(lines)
    failed = [test for suite in suites for test in suite.failed]
    if failed:
        yield "\n".join(["Failed:", "", *(f"- `{test}`" for test in failed)])


def _speeds(speeds: Sequence[Speed]) -> Iterable[str]:
    if not speeds:
        return
    lines = ["| Model | Tokens/s | ollama_engine | llama.cpp | ratio |", "|---|---|---:|---:|---:|"]
    for speed in speeds:
        ratio = f"{speed.ours / speed.peer:.2f}" if speed.peer else "-"
        peer = _number(speed.peer, 1)
        lines.append(f"| {_cell(speed.model)} | {speed.measure} | {speed.ours:.1f} | {peer} | {ratio} |")
    yield "\n".join(lines)


def _number(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
