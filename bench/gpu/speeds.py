"""Tokens/s of prompts, answers and many streams on a device, beside llama.cpp's tools on the same ggml, in turn."""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peer_streams import batched_bench_speeds
from bench.peer_tools import build_tools, our_program, run

ROOT = Path(__file__).resolve().parents[2]
CONTEXT_STEP = 256
"""llama.cpp rounds the context of each stream up to this."""

Figures = Mapping[str, float]
"""Tokens/s by what was measured."""


@dataclass(frozen=True)
class Speed:
    """Medians, in tokens/s; None of a peer that was not measured."""

    model: str
    measure: str
    ours: float
    peer: float | None = None


@dataclass(frozen=True)
class Load:
    """The work: tokens of the prompts of one stream, of those of many and of the answers, and how often."""

    prompts: tuple[int, ...] = (512,)
    generate: int = 128
    rounds: int = 3
    widths: tuple[int, ...] = ()

    @property
    def shared(self) -> int:
        """Tokens of a prompt where many are computed together."""
        return self.prompts[0]


def compare(
    models: Sequence[str], device: str, backend: str | None, load: Load, tell: Callable[[str], None]
) -> list[Speed]:
    """Rows for each file. `backend`: the one of BACKENDS that the peer is built with; None measures no peer."""
    tools = None
    if backend is not None:
        tell("building llama.cpp's tools on the same ggml, unless they are there")
        tools = build_tools(backend)
    speeds = []
    for model in models:
        tell(f"speed: {Path(model).name}")
        mine, other = [], []
        for _ in range(load.rounds):
            mine.append(ours(model, device, load))
            if tools is not None:
                other.append(peers(tools, model, device, load))
        speeds += medians(Path(model).stem, mine, other)
    return speeds


def medians(model: str, mine: Sequence[Figures], other: Sequence[Figures]) -> list[Speed]:
    """A row for each figure of ours."""
    return [
        Speed(model, what, statistics.median(run[what] for run in mine),
              statistics.median(run[what] for run in other) if other else None)
        for what in mine[0]
    ]  # fmt: skip


def ours(model: str, device: str, load: Load) -> Figures:
    """One run of `ollama-engine bench` for each length of a prompt."""
    found: dict[str, float] = {}
    for i, prompt in enumerate(load.prompts):
        command = [our_program(), "bench", model, "--device", device, "-p", str(prompt), "-r", "1", "--json"]
        command += ["-n", str(load.generate if i == 0 else 0)]
        if i == 0 and load.widths:
            command += ["--parallel", _listed(load.widths)]
        result = json.loads(run(command).stdout)
        found[f"prompt of {prompt}"] = result["prefill_tps"]
        if i == 0:
            found[f"answer of {load.generate}"] = result["decode_tps"]
            for row in result["parallel"]:
                found |= _many(row["streams"], load, row["prefill_tps"], row["decode_tps"])
    return found


def peers(tools: Path, model: str, device: str, load: Load) -> Figures:
    """llama-bench and llama-batched-bench, all layers on the device of that name, which ggml gives both sides alike."""
    there = ["-m", model, "-ngl", "99", "--device", device]
    command = [str(tools / "llama-bench"), *there, "-p", _listed(load.prompts), "-n", str(load.generate)]
    found: dict[str, float] = {}
    for test in json.loads(run([*command, "-r", "1", "-o", "json"]).stdout):
        what = f"prompt of {test['n_prompt']}" if test["n_prompt"] else f"answer of {test['n_gen']}"
        found[what] = test["avg_ts"]
    if not load.widths:
        return found
    context = -(-(load.shared + load.generate) // CONTEXT_STEP) * CONTEXT_STEP * max(load.widths)
    command = [str(tools / "llama-batched-bench"), *there, "-c", str(context), "-npp", str(load.shared)]
    command += ["-ntg", str(load.generate), "-npl", _listed(load.widths), "--output-format", "jsonl"]
    for variant in ("--no-kv-unified", "--kv-unified"):  # the better of both counts
        for width, speeds in batched_bench_speeds(run([*command, variant]).stdout).items():
            for what, speed in _many(width, load, speeds.prefill_tps, speeds.decode_tps).items():
                found[what] = max(speed, found.get(what, 0.0))
    return found


def _many(width: int, load: Load, prefill: float, decode: float) -> dict[str, float]:
    return {f"{width} prompts of {load.shared}": prefill, f"{width} answers of {load.generate}": decode}


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


@contextlib.contextmanager
def shaped_files(shapes: Sequence[str], tell: Callable[[str], None]) -> Iterator[list[str]]:
    """Files of random weights for shapes such as "llama-8b:q4_k_m", each a name of make_model's and a preset."""
    with tempfile.TemporaryDirectory(prefix="oe-gpu-") as folder:
        paths = []
        for shape in shapes:
            name, _, preset = shape.partition(":")
            paths.append(f"{folder}/{name} {preset.upper()}.gguf")
            tell(f"writing random weights: {Path(paths[-1]).stem}")
            command = [sys.executable, "bench/make_model.py", name, preset, paths[-1]]
            if subprocess.run(command, cwd=ROOT, check=False, stderr=subprocess.DEVNULL).returncode != 0:
                raise SystemExit(f"gpu-check: `{' '.join(command)}` failed; is {shape} SHAPE:PRESET, and room for it?")
        yield paths
