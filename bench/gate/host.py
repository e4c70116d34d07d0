"""The engine's work beside computing, one thread: sampling, masks, a step without computing. Rows of `TARGETS`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from bench.gate.verdict import OURS, Group, Measured
from bench.rows import Row, from_json
from bench.targets import TARGETS, Target

ROOT = Path(__file__).resolve().parents[2]
QUICK = ("--benchmark-max-time=0.3", "--benchmark-min-rounds=10")
"""A row's time; the fastest round counts."""


def group() -> Group:
    def measure(wanted: Collection[str]) -> Iterator[tuple[str, Measured]]:
        chosen = {name: TARGETS[name] for name in wanted}
        twins = {target.twin for target in chosen.values() if target.twin}
        yield from measured(chosen, from_json(run([*chosen, *sorted(twins)])))

    return Group("beside computing", dict.fromkeys(TARGETS, 1.0), measure)


def measured(targets: Mapping[str, Target], rows: list[Row]) -> Iterator[tuple[str, Measured]]:
    """Rows beside what each may take. The median calibration of a run counts: a neighbour disturbs single ones."""
    unit = median(row.calibration for row in rows)
    seconds = {row.name: row.seconds for row in rows}
    for name, target in targets.items():
        if name in seconds and (limit := target.limit(seconds, unit)) is not None:
            yield name, Measured({OURS: seconds[name], "limit": limit})


def run(names: list[str]) -> dict[str, Any]:
    """pytest-benchmark's JSON of these rows. Raises SystemExit with its words where pytest fails."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run.json"
        command = [sys.executable, "-m", "pytest", "-q", "--benchmark-enable", "--benchmark-only", "--benchmark-quiet",
                   f"--benchmark-json={out}", *QUICK, *(f"bench/{name}" for name in names)]  # fmt: skip
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{done.stdout}{done.stderr}gate: pytest ended with {done.returncode}")
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return found
