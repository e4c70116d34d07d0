"""How fast prompts and answers are while other processes want the CPUs.

    python bench/busy.py MODEL.gguf --load 0,1,2,4,8 -t 1,2 -r 3
    python bench/busy.py MODEL.gguf --beside OTHER/.venv/bin/python --peer     # in turn with others

For each load, as many processes count in a session of their own. Each run is a process of its own: `ollama-engine
bench`, and `llama-bench` for the peer. The table has medians, in tokens/s.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for when this file is run as a program

from bench.peer_single import llama_bench_speeds
from bench.peer_tools import run, tool

_BURNERS = """
import os, sys
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        while os.getppid() != 1: sum(range(100_000))
        os._exit(0)
sys.stdin.read()
"""
"""Ends when its standard input does, and its children end with it."""

Speeds = tuple[float, float]
"""Tokens/s of the prompt, and of the answer."""


@contextmanager
def burners(n: int) -> Iterator[None]:
    """`n` processes that want a CPU each, in a session of their own."""
    command = [sys.executable, "-c", _BURNERS, str(n)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):
        yield


def measure(python: str, model: str, threads: int, prompt: int, answer: int) -> Speeds:
    """One run of an environment's `ollama-engine bench`."""
    command = [python, "-m", "ollama_engine", "bench", model, "-t", str(threads), "-r", "1", "--json"]
    result = json.loads(run([*command, "-p", str(prompt), "-n", str(answer)]).stdout)
    return result["prefill_tps"], result["decode_tps"]


def measure_peer(model: str, threads: int, prompt: int, answer: int) -> Speeds:
    """One run of llama-bench."""
    command = [tool("llama-bench"), "-m", model, "-t", str(threads), "-r", "1", "-o", "json"]
    return llama_bench_speeds(json.loads(run([*command, "-p", str(prompt), "-n", str(answer)]).stdout))


def table(results: dict[int, dict[str, list[Speeds]]]) -> str:
    """Markdown: a row for each load and what was run, with the medians."""
    lines = ["| other processes | | prompt | answer |", "|---:|---|---:|---:|"]
    for load, rows in results.items():
        for name, speeds in rows.items():
            prompt, answer = (statistics.median(values) for values in zip(*speeds, strict=True))
            lines.append(f"| {load} | {name} | {prompt:.0f} | {answer:.1f} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Tokens/s while other processes want the CPUs.")
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--load", default="0,1,2,4,8", metavar="N,..", help="how many other processes")
    parser.add_argument("-t", default="1,2", metavar="N,..", help="threads")
    parser.add_argument("-p", type=int, default=512, metavar="TOKENS", help="of the prompt")
    parser.add_argument("-n", type=int, default=64, metavar="TOKENS", help="of the answer")
    parser.add_argument("-r", type=int, default=3, metavar="ROUNDS")
    parser.add_argument("--beside", metavar="PYTHON", help="an environment with another version of the package")
    parser.add_argument("--peer", action="store_true", help="llama-bench, too")
    chosen = parser.parse_args(arguments)
    pythons = {"": sys.executable} | ({"beside, ": chosen.beside} if chosen.beside else {})
    runs: dict[str, Callable[[], Speeds]] = {}
    for threads in map(int, chosen.t.split(",")):
        sizes = (chosen.model, threads, chosen.p, chosen.n)
        for name, python in pythons.items():
            runs[f"{name}{threads} threads"] = lambda python=python, sizes=sizes: measure(python, *sizes)
        if chosen.peer:
            runs[f"llama.cpp, {threads} threads"] = lambda sizes=sizes: measure_peer(*sizes)
    results: dict[int, dict[str, list[Speeds]]] = {}
    for load in map(int, chosen.load.split(",")):
        rows = results[load] = defaultdict(list)
        with burners(load):
            for _ in range(chosen.r):
                for name, measured in runs.items():
                    rows[name].append(measured())
    print(table(results))


if __name__ == "__main__":
    main()
