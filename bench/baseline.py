"""The committed baseline, and whether a run is worse: times in units of the calibration loop, so that another moment of
the same machine compares. Another processor shifts the ratios; the file says which one it was.

The loop is measured around every row; the median of a run counts, since a neighbour slows single ones down. What a row
may lose by chance is on the side of the check: its best of up to three runs stands against the second best of those
that made the baseline, so that one lucky run sets no mark that others miss.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.rows import Row

PATH = Path(__file__).resolve().parent / "baseline.json"
TOLERANCE = 1.25
"""A row fails above this times its baseline."""
SHORTEST = 10e-6
"""Of shorter rows, the clock and the loop around them are too large a part: they are shown only."""
ATTEMPTS = 3
"""How often a row is measured before it fails."""


@dataclass(frozen=True)
class Expected:
    """A row of the baseline."""

    ratio: float
    microseconds: float
    """On the machine and in the moment of the baseline; for readers."""
    informative: bool
    """Whether it fails no check."""


@dataclass(frozen=True)
class Baseline:
    """What the rows took, and where."""

    machine: str
    runs: int
    rows: Mapping[str, Expected]


@dataclass(frozen=True)
class Verdict:
    """A row beside its baseline."""

    name: str
    ratio: float
    expected: Expected | None

    @property
    def change(self) -> float | None:
        """1.1 is a tenth slower than the baseline."""
        return self.ratio / self.expected.ratio if self.expected else None

    @property
    def worse(self) -> bool:
        return self.change is not None and self.change > TOLERANCE and not (self.expected and self.expected.informative)


def machine(run: Mapping[str, Any]) -> str:
    """The processor of a run, from pytest-benchmark's JSON."""
    cpu = run["machine_info"]["cpu"]
    return f"{cpu.get('brand_raw', 'unknown')}, family {cpu.get('family', '?')}, {cpu.get('count', '?')} CPUs"


def ratios(rows: Sequence[Row]) -> dict[str, float]:
    """{row of ours: its shortest time in units of the calibration loop}."""
    unit = median(row.calibration for row in rows)
    best: dict[str, float] = {}
    for row in rows:
        if row.side == "ours":
            best[row.name] = min(row.seconds / unit, best.get(row.name, float("inf")))
    return best


def collect(where: str, runs: Sequence[Sequence[Row]]) -> Baseline:
    """The second best of several runs, for each row of ours."""
    found: dict[str, list[tuple[float, Row]]] = {}
    for run in runs:
        of = ratios(run)
        for row in (row for row in run if row.side == "ours"):
            found.setdefault(row.name, []).append((of[row.name], row))
    return Baseline(where, len(runs), {name: _expected(measured) for name, measured in sorted(found.items())})


def _expected(measured: list[tuple[float, Row]]) -> Expected:
    ordered = sorted(measured, key=lambda row: row[0])
    ratio, row = ordered[min(1, len(ordered) - 1)]
    informative = row.waits or row.seconds < SHORTEST
    return Expected(float(f"{ratio:.4g}"), float(f"{row.seconds * 1e6:.4g}"), informative)


def judge(rows: Sequence[Row], baseline: Baseline) -> list[Verdict]:
    """A verdict for each row of ours that was measured."""
    return [Verdict(name, ratio, baseline.rows.get(name)) for name, ratio in ratios(rows).items()]


def check(names: Sequence[str], baseline: Baseline, measure: Callable[[Sequence[str]], list[Row]]) -> list[Verdict]:
    """Measure rows, and those that look worse again: a neighbour's work goes, a regression stays.

    Raises ValueError where a row is not measured, or unknown to the baseline.
    """
    unknown = [name for name in names if name not in baseline.rows]
    if unknown:
        raise ValueError(f"the baseline does not know {', '.join(unknown)}; take it again: board.py baseline")
    rows: list[Row] = []
    suspicious = list(names)
    for _ in range(ATTEMPTS):
        rows += measure(suspicious)
        missing = set(suspicious) - {row.name for row in rows}
        if missing:
            raise ValueError(f"{', '.join(sorted(missing))} was not measured; has it been renamed?")
        suspicious = [verdict.name for verdict in judge(rows, baseline) if verdict.worse]
        if not suspicious:
            break
    return judge(rows, baseline)


# -- the file ----------------------------------------------------------------------------------------------------------


def load(path: Path = PATH) -> Baseline:
    found = json.loads(path.read_text(encoding="utf-8"))
    rows = {name: Expected(**row) for name, row in found["rows"].items()}
    return Baseline(found["machine"], found["runs"], rows)


def save(baseline: Baseline, path: Path = PATH) -> None:
    """A row in each line, so that a diff shows what changed."""
    head = {"machine": baseline.machine, "runs": baseline.runs}
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(asdict(row))}" for name, row in baseline.rows.items())
    opening = json.dumps(head, indent=1).removesuffix("\n}")
    path.write_text(f'{opening},\n "rows": {{\n{rows}\n }}\n}}\n', encoding="utf-8")
