"""One caller: `ollama-engine bench` beside llama-bench, from an empty context or behind one of some depth."""

from __future__ import annotations

import json
import os
import statistics
import sys
from dataclasses import asdict, dataclass
from typing import Any

from bench.peer_tools import Finished, our_program, run, tool

ATTEMPTS = 3
"""Runs of ours until one has all threads."""


@dataclass(frozen=True)
class Ask:
    """One measurement: tokens of a prompt, tokens that are generated, tokens that are there before."""

    model: str
    prompt: int
    generate: int
    threads: int
    depth: int = 0
    cache: str = "f16"


@dataclass(frozen=True)
class Figures:
    """One run, or the medians of several. Speeds in tokens/s; `short_run_seconds` is the wall time of a whole process
    that loads the model and computes one prompt token and one more; `peak_rss_bytes` covers mapped model pages."""

    prefill_tps: float
    decode_tps: float
    load_seconds: float
    short_run_seconds: float
    peak_rss_bytes: float


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure_ours(ask: Ask) -> Figures:
    command = [our_program(), "bench", ask.model, "-t", str(ask.threads), "-r", "1", "--json"]
    command += ["--kv-cache-type", ask.cache]
    short = run([*command, "-p", "1", "-n", "1", "--no-warmup"])
    behind = ["--depth", str(ask.depth)] if ask.depth else []
    full = run_ours([*command, "-p", str(ask.prompt), "-n", str(ask.generate), *behind], ask.threads)
    result = json.loads(full.stdout)
    speeds = result["depth"][0] if ask.depth else result
    return Figures(
        speeds["prefill_tps"], speeds["decode_tps"], result["load_seconds"], short.seconds, full.peak_rss_bytes
    )


def run_ours(command: list[str], threads: int) -> Finished:
    """`ollama-engine bench ... --json`, again where a busy machine made it give way: its peers never do."""
    for attempt in range(ATTEMPTS):
        done = run(command)
        result = json.loads(done.stdout)
        used = min((result.get("depth") or [result])[0]["samples"]["threads_in_use"])
        if used == threads:
            break
        end = "so this compares no engines" if attempt == ATTEMPTS - 1 else "once more"
        print(f"the machine is busy: ours computed with {used:.0f} of {threads} threads, {end}", file=sys.stderr)
    return done


def measure_peer(ask: Ask) -> Figures:
    """llama-bench does not report its load time: it is what remains of the short run besides its two tests."""
    command = [tool("llama-bench"), "-m", ask.model, "-t", str(ask.threads), "-r", "1", "-o", "json"]
    command += ["-ctk", ask.cache, "-ctv", ask.cache]
    short = run([*command, "-p", "1", "-n", "1", "--no-warmup"])
    in_tests = sum(sum(test["samples_ns"]) for test in json.loads(short.stdout)) / 1e9
    full = run([*command, "-p", str(ask.prompt), "-n", str(ask.generate), "-d", str(ask.depth)])
    speeds = llama_bench_speeds(json.loads(full.stdout))
    return Figures(*speeds, short.seconds - in_tests, short.seconds, full.peak_rss_bytes)


def llama_bench_speeds(tests: list[dict[str, Any]]) -> tuple[float, float]:
    """(prefill, decode) in tokens/s from llama-bench's JSON, one entry per test."""
    prefill = [test["avg_ts"] for test in tests if test["n_prompt"] > 0 and test["n_gen"] == 0]
    decode = [test["avg_ts"] for test in tests if test["n_gen"] > 0 and test["n_prompt"] == 0]
    return prefill[0], decode[0]


def medians(runs: list[Figures]) -> Figures:
    rows = [asdict(run) for run in runs]
    return Figures(**{key: statistics.median(row[key] for row in rows) for key in rows[0]})


def compare(ask: Ask, repetitions: int) -> dict[str, Any]:
    tool("llama-bench")  # builds it now rather than in the middle of the runs
    ours, peer = [], []
    for i in range(repetitions):
        print(f"round {i + 1} of {repetitions}", file=sys.stderr)
        ours.append(measure_ours(ask))
        peer.append(measure_peer(ask))
    return {
        **asdict(ask), "model": os.path.basename(ask.model), "repetitions": repetitions,
        "ours": asdict(medians(ours)), "llama_cpp": asdict(medians(peer)),
    }  # fmt: skip


# -- reporting ---------------------------------------------------------------------------------------------------------

ROWS = (
    ("prefill, tokens/s", "prefill_tps", 1.0, 1),
    ("decode, tokens/s", "decode_tps", 1.0, 2),
    ("load, s", "load_seconds", 1.0, 2),
    ("short run, s", "short_run_seconds", 1.0, 2),
    ("peak memory, MiB", "peak_rss_bytes", 2.0**-20, 0),
)


def report(result: dict[str, Any]) -> str:
    lines = ["| | ollama_engine | llama.cpp | ratio |", "|---|---:|---:|---:|"]
    for title, key, unit, digits in ROWS:
        a, b = result["ours"][key] * unit, result["llama_cpp"][key] * unit
        lines.append(f"| {title} | {a:.{digits}f} | {b:.{digits}f} | {a / b if b else float('nan'):.2f} |")
    return "\n".join(lines)
