"""Where the time of a process goes from its start to the first token and to its end: what `bench_start.py` reports.

    python bench/start_stages.py MODEL.gguf -t 2 -r 5
    python bench/start_stages.py MODEL.gguf --beside OTHER/.venv/bin/python     # in turn with another version

Each run is a process of its own (`start_child.py`) that imports the package, opens an Engine, waits for the first token
of a short text, and closes, with a clock around each step; how long Python took to start and to end is what its parent
saw besides. The table has the shortest of each stage. The file lies in the system's page cache after the first run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for when this file is run as a program

from bench.peer_tools import run

CHILD = Path(__file__).with_name("start_child.py")
INSIDE = {
    "header": "read the header",
    "tokenizer": "build the tokenizer",
    "backend": "start the backend",
    "map": "map the weights and page them in",
    "cache": "allocate and zero the cache",
    "reserve": "reserve the graphs",
    "repack": "make repacked copies of weights",
}
"""Stages of `Engine()`."""
STAGES = {
    "start": "start of Python",
    "numpy": "import numpy",
    "package": "import ollama_engine.Engine",
    **INSIDE,
    "other": "the rest of Engine()",
    "token": "first token of a short text",
    "close": "close the Engine",
    "end": "end of Python",
}
"""In the order of a run, with what they are."""

Seconds = dict[str, float]
"""By stage."""


def measure(model: str, threads: int, python: str = sys.executable) -> Seconds:
    """One run."""
    begin = time.monotonic()
    done = run([python, str(CHILD), model, str(threads)])
    end = time.monotonic()
    found = json.loads(done.stdout)
    found["start"], found["end"] = found["begin"] - begin, end - found["done"]
    found["other"] = found["engine"] - sum(found[stage] for stage in INSIDE)
    return {stage: found[stage] for stage in STAGES}


def shortest(runs: list[Seconds]) -> Seconds:
    """The minimum of each stage."""
    return {stage: min(run[stage] for run in runs) for stage in STAGES}


def to_first_token(seconds: Seconds) -> float:
    """From the start of the process on."""
    return sum(seconds.values()) - seconds["close"] - seconds["end"]


def table(columns: dict[str, Seconds]) -> str:
    """Markdown, in milliseconds."""
    lines = ["| | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    rows = [(title, [column[stage] for column in columns.values()]) for stage, title in STAGES.items()]
    rows.append(("process start to first token", [to_first_token(column) for column in columns.values()]))
    rows.append(("the whole process", [sum(column.values()) for column in columns.values()]))
    lines += [f"| {title} | {' | '.join(f'{1e3 * figure:.0f}' for figure in figures)} |" for title, figures in rows]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Where the time goes from the start of a process to its first token.")
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("-t", type=int, default=os.cpu_count() or 1, metavar="THREADS")
    parser.add_argument("-r", type=int, default=5, metavar="ROUNDS")
    parser.add_argument("--beside", metavar="PYTHON", help="an environment with another version of the package")
    chosen = parser.parse_args(arguments)
    pythons = {"ms": sys.executable} | ({"beside, ms": chosen.beside} if chosen.beside else {})
    runs: dict[str, list[Seconds]] = {name: [] for name in pythons}
    for _ in range(chosen.r):
        for name, python in pythons.items():
            runs[name].append(measure(chosen.model, chosen.t, python))
    print(table({name: shortest(found) for name, found in runs.items()}))


if __name__ == "__main__":
    main()
