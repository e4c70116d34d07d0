"""All benchmarks on one board, in one table. Nothing here fails for being slow: `python -m bench.gate` does.

    python bench/board.py run                  # everything, some minutes: the table, and bench/results/latest.json
    python bench/board.py table [--markdown]   # the table of the latest run again

Peers are measured where they are built (`python bench/peers.py build`); OLLAMA_ENGINE_BENCH_MODEL names a file for the
rows that load a model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for when this file is run as a program

from bench import table
from bench.rows import answers, from_json, machine

ROOT = Path(__file__).resolve().parents[1]
LATEST = ROOT / "bench" / "results" / "latest.json"


def measure(out: Path) -> int:
    """Run all benchmarks; pytest-benchmark writes to `out`. Returns pytest's exit status."""
    command = [sys.executable, "-m", "pytest", "-q", "--benchmark-enable", "--benchmark-only", "--benchmark-quiet"]
    command += [f"--benchmark-json={out}", "bench"]
    return subprocess.run(command, cwd=ROOT, check=False, stdout=sys.stderr).returncode


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


def shown(results: dict[str, Any], *, as_markdown: bool) -> str:
    rows = from_json(results)
    answered = answers(rows)
    lines = list(table.lines(answered))
    notes = [machine(results), *table.footnotes(rows, answered)]
    if as_markdown:
        return "\n\n".join([table.markdown(lines), *notes])
    return "\n".join([table.terminal(lines, colours=sys.stdout.isatty()), "", *notes])


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = top.add_subparsers(dest="command", required=True)
    commands.add_parser("run", help="measure everything and print the table")
    again = commands.add_parser("table", help="print the table of a run")
    again.add_argument("path", type=Path, nargs="?", default=LATEST)
    again.add_argument("--markdown", action="store_true")
    return top


def main(arguments: list[str] | None = None) -> int:
    chosen = parser().parse_args(arguments)
    if chosen.command == "run":
        return run()
    show(chosen.path, as_markdown=chosen.markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
