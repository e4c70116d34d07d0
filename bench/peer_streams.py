"""Several callers at once: `ollama-engine bench --parallel` beside llama-batched-bench, width by width.

What llama-batched-bench calls S_PP and S_TG, for B streams of PP prompt and TG further tokens, none of them shared:
S_PP = B * PP / the time for all prompts, which go into one llama_decode call, batches of -b tokens after each other;
S_TG = B * TG / the time for TG steps of B tokens each, which begin when all prompts are done and end together.
Nothing is sampled there, no text is made, and no other thread waits for it. `ollama-engine bench` measures the same
two spans as callers see them: up to the last stream's first token, and from there to the last stream's end, with
requests that are queued, scheduled, sampled, turned into text and delivered. So a ratio of 1.00 pays for all that.

Same file, threads, type of cache, batches of 512 tokens computed at a time, and flash attention as each chooses (both
where the device has a kernel). llama-batched-bench runs in two variants: each stream with a cache of its own, its
default, and one cache for all (-kvu), as ollama-engine has it. Ratios are to the faster of the two.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.peer_tools import our_program, run, tool

CONTEXT_STEP = 256
"""llama.cpp rounds the context of each stream up to this."""
ATTEMPTS = 5
"""llama-batched-bench ends without its last line in about one run of twelve: nothing waits for its log's thread."""


@dataclass(frozen=True)
class Speeds:
    """Tokens/s of all streams together, of one run or the medians of several."""

    prefill_tps: float
    decode_tps: float


@dataclass(frozen=True)
class Load:
    """The requests that are served."""

    model: str
    prompt: int
    generate: int
    widths: tuple[int, ...]
    threads: int
    cache: str = "f16"


Measured = dict[int, Speeds]
"""By number of streams."""


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure_ours(load: Load) -> Measured:
    command = [our_program(), "bench", load.model, "-t", str(load.threads), "-r", "1", "--json"]
    command += ["-p", str(load.prompt), "-n", str(load.generate), "--parallel", _listed(load.widths)]
    command += ["--kv-cache-type", load.cache]
    rows = json.loads(run(command).stdout)["parallel"]
    return {row["streams"]: Speeds(row["prefill_tps"], row["decode_tps"]) for row in rows}


def measure_peer(load: Load, *variant: str) -> Measured:
    context = -(-(load.prompt + load.generate) // CONTEXT_STEP) * CONTEXT_STEP * max(load.widths)
    command = [tool("llama-batched-bench"), "-m", load.model, "-t", str(load.threads), "-c", str(context)]
    command += ["-npp", str(load.prompt), "-ntg", str(load.generate), "-npl", _listed(load.widths)]
    command += ["-ctk", load.cache, "-ctv", load.cache]
    for _ in range(ATTEMPTS):
        found = batched_bench_speeds(run([*command, "--output-format", "jsonl", *variant]).stdout)
        if set(found) == set(load.widths):
            return found
    raise SystemExit(f"peers: llama-batched-bench measured {sorted(found)} streams instead of {sorted(load.widths)}")


def batched_bench_speeds(output: str) -> Measured:
    """From llama-batched-bench's JSON lines; its log stands between them."""
    tests = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {test["pl"]: Speeds(test["speed_pp"], test["speed_tg"]) for test in tests}


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


SIDES: dict[str, Callable[[Load], Measured]] = {
    "ours": measure_ours,
    "llama_cpp": lambda load: measure_peer(load, "--no-kv-unified"),
    "llama_cpp_unified": lambda load: measure_peer(load, "--kv-unified"),
}


def compare(load: Load, repetitions: int) -> dict[str, Any]:
    """Medians of all sides and the ratios, in `parallel`: one entry for each width."""
    tool("llama-batched-bench")  # builds it now rather than in the middle of the runs
    runs: dict[str, list[Measured]] = {side: [] for side in SIDES}
    for i in range(repetitions):
        for side, measure in SIDES.items():
            print(f"round {i + 1} of {repetitions}: {side}", file=sys.stderr)
            runs[side].append(measure(load))
    return {
        "model": os.path.basename(load.model), "prompt": load.prompt, "generate": load.generate,
        "threads": load.threads, "cache": load.cache, "repetitions": repetitions,
        "parallel": [_row(width, runs) for width in load.widths],
    }  # fmt: skip


def _row(width: int, runs: dict[str, list[Measured]]) -> dict[str, Any]:
    sides = {side: medians([measured[width] for measured in found]) for side, found in runs.items()}
    return {"streams": width, **{side: asdict(speeds) for side, speeds in sides.items()}, "ratio": ratios(sides)}


def medians(runs: list[Speeds]) -> Speeds:
    return Speeds(statistics.median(r.prefill_tps for r in runs), statistics.median(r.decode_tps for r in runs))


def ratios(sides: dict[str, Speeds]) -> dict[str, float]:
    """How many times as fast as the faster variant of llama.cpp, for prompts and for answers."""
    ours, *peers = (asdict(speeds) for speeds in sides.values())
    return {name: ours[name] / max(peer[name] for peer in peers) for name in ours}


# -- reporting ---------------------------------------------------------------------------------------------------------


def report(result: dict[str, Any]) -> str:
    """A table for prompts, one for answers."""
    title = f"{result['prompt']} + {result['generate']} tokens a stream, {result['threads']} threads"
    parts = (("prefill", "prefill_tps"), ("decode", "decode_tps"))
    return "\n\n".join([f"{result['model']}, {title}", *(_table(result, *part) for part in parts)])


def _table(result: dict[str, Any], title: str, name: str) -> str:
    lines = [
        f"| streams | {title}, tokens/s: ollama_engine | llama.cpp | llama.cpp -kvu | ratio | over the first width |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    first = result["parallel"][0]["ours"][name]
    for row in result["parallel"]:
        speeds = " | ".join(f"{row[side][name]:.2f}" for side in SIDES)
        lines.append(f"| {row['streams']} | {speeds} | {row['ratio'][name]:.2f} | {row['ours'][name] / first:.2f} |")
    return "\n".join(lines)
