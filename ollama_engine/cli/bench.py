"""`ollama-engine bench`: tokens per second of prompt and answer, load time and memory, as llama-bench measures them.

Random tokens go straight to the executor. Prompt and answer are measured apart, each from an empty context: a warm-up,
then the repetitions, of which the median counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ollama_engine import __version__
from ollama_engine.cli.errors import UsageError
from ollama_engine.cli.options import add_model, add_options, build, model_path
from ollama_engine.cli.progress import LoadingBar, StatusLine
from ollama_engine.cli.tables import pairs, size, table
from ollama_engine.config import EngineConfig
from ollama_engine.input import Int32Array
from ollama_engine.ml.device import ggml_version
from ollama_engine.runner.loading import Loaded, load
from ollama_engine.runner.measure import decode_seconds, prefill_seconds, random_tokens

__all__ = ["add_arguments", "main", "peak_rss_bytes"]

SIZED = ("num_ctx", "parallel")
"""Engine options that the measurement decides."""
CONTEXT_STEP = 256
"""Contexts are multiples of this, here as in llama.cpp, so that both take the same memory."""

Measure = Callable[[Int32Array], float]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure."""

    n_prompt: int
    n_gen: int
    repetitions: int
    warmup: bool

    @property
    def num_ctx(self) -> int:
        """Tokens of prompt and answer, rounded up."""
        return -(-(self.n_prompt + self.n_gen) // CONTEXT_STEP) * CONTEXT_STEP


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    add_model(parser)
    parser.add_argument("-p", "--n-prompt", type=int, default=512, metavar="N", help="tokens of the prompt; 0 leaves "
                        "that part out (default: 512)")  # fmt: skip
    parser.add_argument("-n", "--n-gen", type=int, default=128, metavar="N", help="tokens of the answer; 0 leaves "
                        "that part out (default: 128)")  # fmt: skip
    parser.add_argument("-r", "--repetitions", type=int, default=3, metavar="N", help="how often to measure; medians "
                        "count (default: 3)")  # fmt: skip
    parser.add_argument("--no-warmup", action="store_true", help="measure the first run too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_options(parser, "engine", EngineConfig, skip=SIZED)


def main(args: argparse.Namespace) -> None:
    """Measure and print."""
    plan = _plan(args)
    config = build(EngineConfig, args, skip=SIZED, num_ctx=plan.num_ctx, parallel=1)
    with StatusLine(sys.stderr) as line:
        started = time.perf_counter()
        loaded = load(model_path(args.model), config, LoadingBar(line, "loading"))
        load_seconds = time.perf_counter() - started
        with closing(loaded):
            samples = _measure(loaded, plan, line)
            result = _result(loaded, plan, load_seconds, samples)
    print(json.dumps(result, indent=2) if args.json else _report(result))


def _plan(args: argparse.Namespace) -> Plan:
    plan = Plan(args.n_prompt, args.n_gen, args.repetitions, not args.no_warmup)
    if plan.n_prompt < 0 or plan.n_gen < 0 or plan.n_prompt + plan.n_gen == 0:
        raise UsageError(f"-p and -n are 0 or more, and one of them 1 or more; got {plan.n_prompt} and {plan.n_gen}")
    if plan.repetitions < 1:
        raise UsageError(f"-r is 1 or more, got {plan.repetitions}")
    return plan


# -- measuring ---------------------------------------------------------------------------------------------------------


def _measure(loaded: Loaded, plan: Plan, line: StatusLine) -> dict[str, list[float]]:
    """Tokens/s of every repetition, {"prefill_tps": [...], "decode_tps": [...]}; empty for what is left out."""
    executor, cache = loaded.executor, loaded.cache
    parts: tuple[tuple[str, int, Measure], ...] = (
        ("prefill", plan.n_prompt, lambda tokens: prefill_seconds(executor, cache, tokens)),
        ("decode", plan.n_gen, lambda tokens: decode_seconds(executor, cache, tokens)),
    )
    samples: dict[str, list[float]] = {}
    for name, n_tokens, seconds in parts:
        speeds = samples[f"{name}_tps"] = []
        if n_tokens == 0:
            continue
        tokens = random_tokens(loaded.model.n_vocab, 1, n_tokens)
        if plan.warmup:
            line.show(f"{name}: warm-up")
            seconds(tokens if name == "prefill" else tokens[:, :1])
        for repetition in range(plan.repetitions):
            line.show(f"{name} of {n_tokens} tokens: {repetition + 1} of {plan.repetitions}")
            speeds.append(n_tokens / seconds(tokens))
    return samples


def _result(loaded: Loaded, plan: Plan, load_seconds: float, samples: dict[str, list[float]]) -> dict[str, Any]:
    medians = {name: statistics.median(speeds) if speeds else None for name, speeds in samples.items()}
    return {
        **medians,
        "load_seconds": load_seconds,
        "peak_rss_bytes": peak_rss_bytes(),
        "model": loaded.path,
        "architecture": loaded.gguf.architecture,
        "threads": loaded.backend.threads,
        "version": __version__,
        "ggml_version": ggml_version(),
        "n_prompt": plan.n_prompt,
        "n_gen": plan.n_gen,
        "repetitions": plan.repetitions,
        "warmup": plan.warmup,
        "samples": samples,
        "num_ctx": plan.num_ctx,
        "batch_size": loaded.executor.batch_size,
        "flash_attention": loaded.cache.flash_attention,
        "kv_cache_type": loaded.config.kv_cache_type,
        "mmap": loaded.config.mmap,
        "devices": [device.name for device in loaded.backend.devices],
        "memory": [asdict(device) for device in loaded.memory().devices],
        "graphs": asdict(loaded.executor.counts),
    }


def peak_rss_bytes(status: Path = Path("/proc/self/status")) -> int | None:
    """The most memory this process had at one time, mapped model pages included; None where that is not known.

    Linux hands getrusage's figure down from the process that started this one, so there its own status is read.
    """
    try:
        for entry in status.read_text(encoding="ascii", errors="replace").splitlines():
            if entry.startswith("VmHWM:"):
                return int(entry.split()[1]) * 1024
    except OSError:
        pass
    try:
        import resource  # noqa: PLC0415
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


# -- for people --------------------------------------------------------------------------------------------------------


def _report(result: dict[str, Any]) -> str:
    rows: list[tuple[str, ...]] = [("test", "tokens/s", "least", "most")]
    for name, n_tokens in (("prefill", result["n_prompt"]), ("decode", result["n_gen"])):
        speeds = result["samples"][f"{name}_tps"]
        if speeds:
            median = result[f"{name}_tps"]
            rows.append((f"{name} {n_tokens}", *(f"{x:.2f}" for x in (median, min(speeds), max(speeds)))))
    peak = result["peak_rss_bytes"]
    built, reused = result["graphs"]["built"], result["graphs"]["reused"]
    facts: list[tuple[str, str | None]] = [
        ("model", result["model"]),
        ("load", f"{result['load_seconds']:.2f} s"),
        ("peak memory", None if peak is None else size(peak)),
        ("threads", str(result["threads"])),
        ("flash attention", "on" if result["flash_attention"] else "off"),
        ("cache", f"{result['kv_cache_type']}, {result['num_ctx']} tokens"),
        ("batch size", str(result["batch_size"])),
        ("graphs", f"{built} built, {reused} reused"),
        ("version", f"{result['version']}, ggml {result['ggml_version']}"),
    ]
    return f"{pairs(facts)}\n\n{table(rows, right=(1, 2, 3))}"
