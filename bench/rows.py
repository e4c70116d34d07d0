"""The rows of a run: what pytest-benchmark wrote, and which rows answer the same question.

A row is on the side of ours, of the twin or of the peer, as `conftest.py` notes it. A question is a group of a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SIDES = ("ours", "twin", "peer")


@dataclass(frozen=True)
class Row:
    """One benchmark of one run."""

    name: str
    """As pytest writes it, without the folder: bench_cells.py::test_step[C]."""
    question: str
    side: str
    seconds: float
    """The fastest round, or what a program reported."""
    calibration: float
    """Seconds of the calibration loop before and after it."""

    @property
    def file(self) -> str:
        return self.name.split("::", 1)[0]

    @property
    def label(self) -> str:
        """The words that tell it from others of its question."""
        test = self.name.rsplit("::", 1)[1].removeprefix("test_")
        match = re.fullmatch(r"(\w+)(?:\[(.*)\])?", test)
        assert match is not None, f"{self.name} is no name of a test"
        words = match[1].replace("_", " ")
        return f"{words} [{match[2]}]" if match[2] else words


@dataclass(frozen=True)
class Answer:
    """One row of ours with what it is compared to."""

    ours: Row
    label: str
    """Empty where it is the only one of its question."""
    twin: Row | None
    peer: Row | None

    def times_as_fast(self, other: Row | None) -> float | None:
        return other.seconds / self.ours.seconds if other and self.ours.seconds > 0 else None


def read(path: Path) -> list[Row]:
    """The rows of a file that `--benchmark-json` wrote."""
    return from_json(json.loads(path.read_text(encoding="utf-8")))


def from_json(run: Mapping[str, Any]) -> list[Row]:
    """Raises ValueError for a run that was not made with bench/conftest.py."""
    return [_row(found) for found in run["benchmarks"]]


def _row(result: Mapping[str, Any]) -> Row:
    extra = result["extra_info"]
    if extra.get("side") not in SIDES or "calibration_s" not in extra:
        raise ValueError(f"{result['fullname']} has no side or no calibration, which bench/conftest.py notes")
    return Row(
        name=_short(result["fullname"]),
        question=result["group"] or result["name"],
        side=extra["side"],
        seconds=extra.get("seconds", result["stats"]["min"]),
        calibration=extra["calibration_s"],
    )


def _short(fullname: str) -> str:
    """Parameters may have slashes; folders come before them."""
    file, test = fullname.split("::", 1)
    return f"{file.rsplit('/', 1)[-1]}::{test}"


def machine(run: Mapping[str, Any]) -> str:
    """The processor of a run, from pytest-benchmark's JSON."""
    cpu = run["machine_info"]["cpu"]
    return f"{cpu.get('brand_raw', 'unknown')}, family {cpu.get('family', '?')}, {cpu.get('count', '?')} CPUs"


def answers(rows: Iterable[Row]) -> list[Answer]:
    """In the order of the run. Raises ValueError where a question has two twins or two peers."""
    questions: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        questions.setdefault((row.file, row.question), []).append(row)
    return [answer for found in questions.values() for answer in _answers(found)]


def _answers(rows: list[Row]) -> list[Answer]:
    ours = [row for row in rows if row.side == "ours"]
    twin, peer = (_only(rows, side) for side in ("twin", "peer"))
    return [Answer(row, row.label if len(ours) > 1 else "", twin, peer) for row in ours]


def _only(rows: list[Row], side: str) -> Row | None:
    answers = [row for row in rows if row.side == side]
    if len(answers) > 1:
        names = ", ".join(row.name for row in answers)
        raise ValueError(f"a question has one {side}, but {names} answer {rows[0].question!r}")
    return answers[0] if answers else None
