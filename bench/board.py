"""All benchmarks on one board: one table, a baseline, and a check against it.

    python bench/board.py run                  # everything, some minutes: the table, and bench/results/latest.json
    python bench/board.py table [--markdown]   # the table of the latest run again
    python bench/board.py check                # quick rows beside the baseline; exit status 1 where one is worse
    python bench/board.py check --all          # all rows that can fail
    python bench/board.py baseline             # take the baseline again, on a quiet machine

Peers are measured where they are built (`python bench/peers.py build`); OLLAMA_ENGINE_BENCH_MODEL names a file for the
rows that load a model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for when this file is run as a program

from bench import baseline, table
from bench.baseline import TOLERANCE, Verdict
from bench.rows import Row, answers, from_json
from bench.targets import GATE, TARGETS

ROOT = Path(__file__).resolve().parents[1]
LATEST = ROOT / "bench" / "results" / "latest.json"
QUICK = ("--benchmark-max-time=0.3", "--benchmark-min-rounds=10")
"""A row's time in checks and baselines, which both take the fastest round."""


def measure(out: Path, names: Sequence[str] = (), options: Sequence[str] = ()) -> int:
    """Run benchmarks, all or those that are named; pytest-benchmark writes to `out`. Returns pytest's exit status."""
    chosen = [f"bench/{name}" for name in names] or ["bench"]
    command = [sys.executable, "-m", "pytest", "-q", "--benchmark-enable", "--benchmark-only", "--benchmark-quiet"]
    command += [f"--benchmark-json={out}", *options, *chosen]
    return subprocess.run(command, cwd=ROOT, check=False, stdout=sys.stderr).returncode


def measure_quickly(names: Sequence[str] = (), options: Sequence[str] = ()) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run.json"
        status = measure(out, names, (*QUICK, *options))
        if status:
            raise SystemExit(f"board: pytest ended with {status}; nothing was compared")
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return found


# -- commands ----------------------------------------------------------------------------------------------------------


def run() -> int:
    """The table, of what could be measured; the status is pytest's."""
    LATEST.parent.mkdir(parents=True, exist_ok=True)
    LATEST.unlink(missing_ok=True)
    status = measure(LATEST)
    show(LATEST, as_markdown=False)
    print(f"written to {LATEST.relative_to(ROOT)}", file=sys.stderr)
    return status


def show(path: Path, *, as_markdown: bool) -> None:
    if not path.exists():
        raise SystemExit(f"board: there is no {path}; `make bench` writes it")
    print(shown(json.loads(path.read_text(encoding="utf-8")), as_markdown=as_markdown))


def shown(found: dict[str, Any], *, as_markdown: bool) -> str:
    rows = from_json(found)
    answered = answers(rows)
    lines = list(table.lines(answered, TARGETS))
    notes = [baseline.machine(found), *table.footnotes(rows, answered, TARGETS)]
    if as_markdown:
        return "\n\n".join([table.markdown(lines), *notes])
    return "\n".join([table.terminal(lines, colours=sys.stdout.isatty()), "", *notes])


def take_baseline(runs: int) -> None:
    found = [measure_quickly(options=("-m", "not (twin or peer or waits)")) for _ in range(runs)]
    taken = baseline.collect(baseline.machine(found[0]), [from_json(path) for path in found])
    baseline.save(taken)
    print(f"{len(taken.rows)} rows, from {runs} runs, in {baseline.PATH.relative_to(ROOT)}")


def check(*, everything: bool) -> int:
    """The exit status: 1 where a row is worse, on the kind of machine that the baseline was taken on."""
    known = baseline.load()
    names = [name for name, row in known.rows.items() if not row.informative] if everything else GATE
    here: set[str] = set()

    def rows(chosen: Sequence[str]) -> list[Row]:
        found = measure_quickly(chosen)
        here.add(baseline.machine(found))
        return from_json(found)

    verdicts = baseline.check(names, known, rows)
    print("\n".join(report(verdicts)))
    if here != {known.machine}:
        print(f"the baseline was taken on {known.machine}, this is {', '.join(here)}: nothing fails for that alone")
        return 0
    return int(any(verdict.worse for verdict in verdicts))


def report(verdicts: Sequence[Verdict]) -> list[str]:
    """A line for each row, the worst last."""
    ordered = sorted(verdicts, key=lambda verdict: verdict.change or 0)
    found = [_line(verdict) for verdict in ordered]
    worse = [verdict.name for verdict in verdicts if verdict.worse]
    if worse:
        found.append(f"{len(worse)} of {len(verdicts)} rows are worse than the baseline by more than "
                     f"{TOLERANCE - 1:.0%}: {', '.join(worse)}")  # fmt: skip
    else:
        found.append(f"{len(verdicts)} rows, none worse than the baseline by more than {TOLERANCE - 1:.0%}")
    return found


def _line(verdict: Verdict) -> str:
    assert verdict.change is not None, "check() measures what the baseline knows"
    mark = "WORSE" if verdict.worse else "shown" if verdict.expected and verdict.expected.informative else "ok"
    return f"{mark:5}  {verdict.change:5.2f} x baseline  {verdict.name}"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="command", required=True)
    commands.add_parser("run", help="measure everything and print the table")
    again = commands.add_parser("table", help="print the table of a run")
    again.add_argument("path", type=Path, nargs="?", default=LATEST)
    again.add_argument("--markdown", action="store_true")
    checked = commands.add_parser("check", help="compare with the baseline")
    checked.add_argument("--all", action="store_true", help="all rows that can fail instead of the quick ones")
    taken = commands.add_parser("baseline", help="write bench/baseline.json")
    taken.add_argument("--runs", type=int, default=5)
    return top


def main(arguments: list[str] | None = None) -> int:
    chosen = parser().parse_args(arguments)
    if chosen.command == "run":
        return run()
    if chosen.command == "table":
        show(chosen.path, as_markdown=chosen.markdown)
    elif chosen.command == "baseline":
        take_baseline(chosen.runs)
    elif chosen.command == "check":
        return check(everything=chosen.all)
    return 0


if __name__ == "__main__":
    sys.exit(main())
