"""Tokens/s of prompts and answers on a device, beside llama-bench with the same backend, in turn."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peer_single import llama_bench_speeds
from bench.peer_tools import build_tools, our_program, run


@dataclass(frozen=True)
class Speed:
    """Medians, in tokens/s; None of a peer that was not measured."""

    model: str
    prompt: int
    generate: int
    prefill: float
    decode: float
    peer_prefill: float | None = None
    peer_decode: float | None = None


@dataclass(frozen=True)
class Load:
    """The work: tokens of the prompt, of the answer, and how often."""

    prompt: int = 512
    generate: int = 128
    rounds: int = 3


def ours(model: str, device: str, load: Load) -> tuple[float, float]:
    command = [our_program(), "bench", model, "--device", device, "-p", str(load.prompt), "-n", str(load.generate)]
    found = json.loads(run([*command, "-r", "1", "--json"]).stdout)
    return found["prefill_tps"], found["decode_tps"]


def peers(program: str, model: str, device: str, load: Load) -> tuple[float, float]:
    """llama-bench with all layers on the device of that name, which ggml gives both sides alike."""
    command = [program, "-m", model, "-ngl", "99", "--device", device, "-p", str(load.prompt), "-n", str(load.generate)]
    return llama_bench_speeds(json.loads(run([*command, "-r", "1", "-o", "json"]).stdout))


def compare(
    models: Sequence[str], device: str, backend: str | None, load: Load, tell: Callable[[str], None]
) -> list[Speed]:
    """A row for each file. `backend`: the one of BACKENDS that the peer is built with; None measures no peer."""
    program = None
    if backend is not None:
        tell("building llama.cpp's llama-bench with the same backend, unless it is there")
        program = str(build_tools(backend) / "llama-bench")
    speeds = []
    for model in models:
        tell(f"speed: {Path(model).name}")
        mine, other = [], []
        for _ in range(load.rounds):
            mine.append(ours(model, device, load))
            if program is not None:
                other.append(peers(program, model, device, load))
        speeds.append(_speed(Path(model).name, load, mine, other))
    return speeds


def _speed(name: str, load: Load, mine: Sequence[tuple[float, float]], other: Sequence[tuple[float, float]]) -> Speed:
    both = [statistics.median(pair[i] for pair in mine) for i in (0, 1)]
    beside = [statistics.median(pair[i] for pair in other) if other else None for i in (0, 1)]
    return Speed(name, load.prompt, load.generate, both[0], both[1], beside[0], beside[1])
