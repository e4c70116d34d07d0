"""One file of every type, ollama-engine beside llama.cpp: decoding, a prompt, eight streams, and peak memory.

    python bench/every_type.py /tmp/every_type                  # hours on 2 cores; goes on where it was stopped
    python bench/every_type.py /tmp/every_type --table          # what is there already
    python bench/every_type.py /tmp/every_type --files llama-1b:q5_0 qwen-0.5b:q4_k_m --rounds 2

FOLDER takes the models (random weights, `make_model.py`; 12 GB, or one at a time with --delete) and results.json, which
is written after each round. Both sides take turns, each time in a fresh process, and medians are compared: a prompt of
256 tokens and an answer of 64 for one stream, 128 and 32 for eight. llama.cpp's streams run with one cache for all and
with a cache for each; the faster of the two counts. `over` is our peak memory without the file and the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for when this file is run as a program

from bench import peer_streams
from bench.model_shapes import PRESETS, SHAPES
from bench.peer_single import llama_bench_speeds
from bench.peer_tools import our_program, run, tool
from bench.real_model import real_model

REAL = "smollm2:q4_1"
TYPES = ("q4_k_m", "q4_0", "q8_0", "q4_1", "q5_0", "q5_1", "q5_k_m", "q6_k", "q3_k_m", "q2_k", "iq4_nl", "iq4_xs")
FILES = (*(f"llama-1b:{preset}" for preset in TYPES), "gemma-1b:q4_k_m", "qwen-0.5b:q4_k_m", REAL)
PROMPT, ANSWER = 256, 64
STREAMS, STREAM_PROMPT, STREAM_ANSWER = 8, 128, 32

Round = dict[str, dict[str, float]]
"""One round: figures by side."""


@dataclass(frozen=True)
class Figures:
    """Tokens/s of one stream and of all eight together; bytes."""

    prefill: float
    decode: float
    prefill_1: float
    """One stream, with the eight's prompt and in the same process."""
    prefill_8: float
    decode_8: float
    peak: float
    over: float = 0.0


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure_ours(model: Path, threads: int) -> Figures:
    command = [our_program(), "bench", str(model), "-t", str(threads), "-r", "1", "--json"]
    full = run([*command, "-p", str(PROMPT), "-n", str(ANSWER)])
    result = json.loads(full.stdout)
    cache = sum(device["cache"] for device in result["memory"])
    several = peer_streams.measure_ours(_load(model, threads))
    return Figures(
        result["prefill_tps"], result["decode_tps"], several[1].prefill_tps, several[STREAMS].prefill_tps,
        several[STREAMS].decode_tps, full.peak_rss_bytes, full.peak_rss_bytes - model.stat().st_size - cache,
    )  # fmt: skip


def measure_peer(model: Path, threads: int) -> Figures:
    command = [tool("llama-bench"), "-m", str(model), "-t", str(threads), "-r", "1", "-o", "json"]
    full = run([*command, "-p", str(PROMPT), "-n", str(ANSWER)])
    prefill, decode = llama_bench_speeds(json.loads(full.stdout))
    found = [peer_streams.measure_peer(_load(model, threads), way) for way in ("--kv-unified", "--no-kv-unified")]
    return Figures(
        prefill, decode, max(speeds[1].prefill_tps for speeds in found),
        max(speeds[STREAMS].prefill_tps for speeds in found), max(speeds[STREAMS].decode_tps for speeds in found),
        full.peak_rss_bytes,
    )  # fmt: skip


def _load(model: Path, threads: int) -> peer_streams.Load:
    return peer_streams.Load(str(model), STREAM_PROMPT, STREAM_ANSWER, (1, STREAMS), threads)


SIDES = {"ours": measure_ours, "llama_cpp": measure_peer}


def model_path(folder: Path, name: str) -> Path:
    return folder / f"{name.replace(':', '-')}.gguf"


def find_model(folder: Path, name: str) -> Path:
    """The file of `name`, SHAPE:TYPE; made where it is not there."""
    if name == REAL:
        path = real_model()
        if path is None:
            raise SystemExit(f"every_type: {REAL} cannot be downloaded; leave it out with --files")
        return path
    shape, preset = name.split(":")
    path = model_path(folder, name)
    if not path.exists():
        partial = path.with_suffix(".partial")
        # A process of its own: Linux counts what this one once held into the peaks of those that it starts.
        arch = ["--arch", "qwen2"] if shape == "qwen-0.5b" else []
        command = [sys.executable, str(Path(__file__).with_name("make_model.py")), shape, preset, str(partial), *arch]
        if subprocess.run(command, check=False).returncode:
            raise SystemExit(f"every_type: {name} was not made, for the reason above")
        partial.replace(path)
    return path


# -- results that survive an interrupt ---------------------------------------------------------------------------------


def load_results(folder: Path, threads: int) -> dict[str, list[Round]]:
    """Rounds by file. Raises SystemExit where they were measured with another number of threads."""
    path = folder / "results.json"
    if not path.exists():
        return {}
    stored = json.loads(path.read_text(encoding="utf-8"))
    if stored["threads"] != threads:
        raise SystemExit(f"every_type: {path} is of {stored['threads']} threads; name another folder, or remove it")
    found: dict[str, list[Round]] = stored["files"]
    return found


def save_results(folder: Path, threads: int, results: Mapping[str, list[Round]]) -> None:
    partial = folder / "results.partial"
    partial.write_text(json.dumps({"threads": threads, "files": results}, indent=1), encoding="utf-8")
    partial.replace(folder / "results.json")


# -- the table ---------------------------------------------------------------------------------------------------------

SPEEDS = (("decode", "decode"), ("prefill", f"prefill {PROMPT}"), ("decode_8", f"{STREAMS} streams, decode"),
          ("prefill_8", f"{STREAMS} streams, prefill"))  # fmt: skip


def table(results: Mapping[str, Sequence[Round]]) -> Iterable[str]:
    """Medians: ours / llama.cpp's and the ratio, tokens/s; the eight streams' prefill over one's; MiB."""
    yield f"| file | {' | '.join(title for _, title in SPEEDS)} | {STREAMS} over 1 | peak, MiB | over |"
    yield f"|---|{'---:|' * (len(SPEEDS) + 3)}"
    for name, rounds in results.items():
        ours, peer = (medians(rounds, side) for side in SIDES)
        cells = [f"{ours[key]:.1f} / {peer[key]:.1f} = **{ours[key] / peer[key]:.2f}**" for key, _ in SPEEDS]
        cells.append(f"{ours['prefill_8'] / ours['prefill_1']:.2f}")
        cells += [f"{ours['peak'] / 2**20:.0f} / {peer['peak'] / 2**20:.0f}", f"{ours['over'] / 2**20:.0f}"]
        yield f"| {name} | {' | '.join(cells)} |"


def medians(rounds: Sequence[Round], side: str) -> dict[str, float]:
    return {key: statistics.median(each[side][key] for each in rounds) for key in rounds[0][side]}


def known_file(text: str) -> str:
    shape, _, preset = text.partition(":")
    if text == REAL or (shape in SHAPES and preset in PRESETS):
        return text
    raise argparse.ArgumentTypeError(f"expected SHAPE:TYPE such as llama-1b:q5_0, or {REAL}, got {text!r}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--files", nargs="+", type=known_file, default=FILES, metavar="SHAPE:TYPE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--delete", action="store_true", help="remove each model that was made, once it is measured")
    parser.add_argument("--table", action="store_true", help="measure nothing, print what is there")
    chosen = parser.parse_args(arguments)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    results = load_results(chosen.folder, chosen.threads)
    if not chosen.table:
        for tool_name in ("llama-bench", "llama-batched-bench"):
            tool(tool_name)  # builds them now rather than in the middle of the runs
        for name in chosen.files:
            measure_file(chosen.folder, name, chosen.rounds, chosen.threads, results)
            if chosen.delete and name != REAL:
                model_path(chosen.folder, name).unlink(missing_ok=True)
    print("\n".join(table(results)))


def measure_file(folder: Path, name: str, rounds: int, threads: int, results: dict[str, list[Round]]) -> None:
    """The rounds that are missing, each saved when it is done."""
    while len(results.get(name, [])) < rounds:
        complete: Round = {}
        for side, measure in SIDES.items():
            print(f"{name}: round {len(results.get(name, [])) + 1} of {rounds}, {side}", file=sys.stderr, flush=True)
            complete[side] = asdict(measure(find_model(folder, name), threads))
        results.setdefault(name, []).append(complete)
        save_results(folder, threads, results)


if __name__ == "__main__":
    main()
