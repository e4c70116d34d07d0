"""The arguments of `ollama-engine bench`, and the order of measurements.

One prompt and one answer come first. Several callers need an engine of another size, which is opened after the first
engine is closed. Each measurement is a warm-up, then repetitions; the median counts.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Collection
from contextlib import closing
from typing import Any

import ollama_engine
from ollama_engine.cli.errors import UsageError
from ollama_engine.cli.measure.bench.kernels import ALL_TYPES, kernel_report, kernel_speeds
from ollama_engine.cli.measure.bench.parts import Samples, measure_depths, measure_parts
from ollama_engine.cli.measure.bench.plan import BenchPlan
from ollama_engine.cli.measure.bench.plot import check, draw
from ollama_engine.cli.measure.bench.report import report
from ollama_engine.cli.measure.bench.result import conditions, medians, peak_rss_bytes, rows
from ollama_engine.cli.options import add_model, add_options, build, model_path
from ollama_engine.cli.progress import LoadingBar, StatusLine
from ollama_engine.config import DEFAULT_NUM_CTX, EngineConfig
from ollama_engine.errors import ConfigError
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.runner.load.loading import load

__all__ = ["add_arguments", "main"]

SIZED = ("num_ctx", "parallel", "max_queue")
"""Engine options that the measurement sets, and one without effect here."""
PLOT_PARALLEL = (1, 2, 4, 8)
PLOT_DEPTHS = (0, 256, 1024, 2048, 4096)
"""Defaults of a picture; depths are limited to the context that the model was trained for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    add_model(parser, optional=True)
    parser.add_argument("-p", "--n-prompt", type=int, default=512, metavar="N", help="tokens of the prompt; 0 leaves "
                        "that part out (default: 512)")  # fmt: skip
    parser.add_argument("-n", "--n-gen", type=int, default=128, metavar="N", help="tokens of the answer; 0 leaves "
                        "that part out (default: 128)")  # fmt: skip
    parser.add_argument("-r", "--repetitions", type=int, default=3, metavar="N", help="how often to measure; medians "
                        "count (default: 3)")  # fmt: skip
    parser.add_argument("--no-warmup", action="store_true", help="measure the first run too")
    parser.add_argument("--parallel", type=_counts, metavar="N,N", help="also measure as many callers at once, such as "
                        "1,2,4,8: tokens/s of all together, through the engine [1..1024]")  # fmt: skip
    parser.add_argument("--depth", type=_counts, metavar="N,N", help="also measure prompt and answer behind as many "
                        "tokens of context, such as 0,1024,4096 [>= 0]")  # fmt: skip
    parser.add_argument("--plot", metavar="FILE", help="draw tokens/s over callers and over depth as .png, .svg or "
                        ".pdf: 1 to 8 callers and depths up to 4096 if neither is given; needs the extra plot"
                        )  # fmt: skip
    parser.add_argument("--kernels", action="store_true", help="measure instead how fast each kernel of few rows reads "
                        "weights of each type, or of the types of MODEL, beside reading alone")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_options(parser, "engine", EngineConfig, skip=SIZED)


def _counts(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected whole numbers such as 1,2,4, got {text!r}") from None


def main(args: argparse.Namespace) -> None:
    if args.kernels:
        _kernels(args)
        return
    if args.model is None:
        raise UsageError("bench measures a MODEL, or --kernels")
    if args.plot is not None:
        check(args.plot)
    path = model_path(args.model)
    plan = _plan(args, path)
    single = build(EngineConfig, args, skip=SIZED, num_ctx=plan.num_ctx, parallel=1)
    shared = build(
        EngineConfig, args, skip=SIZED, num_ctx=plan.num_ctx_of_stream, parallel=max(plan.parallel, default=1)
    )
    result = _measure(path, plan, single, shared)
    print(json.dumps(result, indent=2) if args.json else report(result))
    if args.plot is not None:
        draw(result, args.plot)
        print(f"drawn: {args.plot}", file=sys.stderr)


def _kernels(args: argparse.Namespace) -> None:
    dtypes: Collection[str] = ALL_TYPES
    if args.model is not None:
        with GGUFFile(model_path(args.model)) as file:
            there = {info.dtype for info in file.tensors.values()}
        dtypes = [dtype for dtype in ALL_TYPES if dtype in there]
    with StatusLine(sys.stderr) as line:
        result = kernel_speeds(dtypes, build(EngineConfig, args, skip=SIZED).threads, line.show)
    print(json.dumps(result, indent=2) if args.json else kernel_report(result))


def _plan(args: argparse.Namespace, path: str) -> BenchPlan:
    plan = BenchPlan(
        args.n_prompt, args.n_gen, args.repetitions, not args.no_warmup, args.parallel or (), args.depth or ()
    )
    if args.plot is None or plan.parallel or plan.depths:
        return plan
    room = _trained_context(path) - plan.n_prompt - plan.n_gen
    depths = tuple(depth for depth in PLOT_DEPTHS if depth <= max(room, 0))
    return dataclasses.replace(plan, parallel=PLOT_PARALLEL, depths=depths)


def _open_writer(path: str) -> GGUFFile:
    """Open the model's file. Raises ConfigError for a text encoder."""
    file = GGUFFile(path)
    metadata = Metadata(file.metadata)
    if not metadata.bool("attention.causal", True):
        file.close()
        raise ConfigError(f"bench measures models that write; {metadata.architecture} only reads")
    return file


def _trained_context(path: str) -> int:
    """Longest context that the model was trained for, in tokens."""
    with GGUFFile(path) as file:
        return Metadata(file.metadata).u32("context_length", DEFAULT_NUM_CTX) or DEFAULT_NUM_CTX


def _measure(path: str, plan: BenchPlan, single: EngineConfig, shared: EngineConfig) -> dict[str, Any]:
    with StatusLine(sys.stderr) as line:
        started = time.perf_counter()
        loaded = load(_open_writer(path), single, LoadingBar(line, "loading"))
        load_seconds = time.perf_counter() - started
        with closing(loaded):
            samples = measure_parts(loaded, plan, line.show)
            behind = measure_depths(loaded, plan, line.show)
            setting = conditions(loaded, plan)
            n_vocab = min(loaded.model.n_vocab, loaded.tokenizer.n_vocab)
            banned = loaded.tokenizer.eog_ids
        together = _measure_callers(path, plan, shared, n_vocab, banned, line) if plan.parallel else []
    return {
        **medians(samples),
        "load_seconds": load_seconds,
        "peak_rss_bytes": peak_rss_bytes(),
        **setting,
        "samples": samples,
        "parallel": rows("streams", plan.parallel, together),
        "depth": rows("depth", plan.depths, behind),
    }


def _measure_callers(
    path: str, plan: BenchPlan, config: EngineConfig, n_vocab: int, banned: Collection[int], line: StatusLine
) -> list[Samples]:
    # One prompt and one answer need no Engine, and its import takes a tenth of a short run.
    from ollama_engine.cli.measure.bench.streams import measure_streams  # noqa: PLC0415 (see above)

    options = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    with ollama_engine.Engine(path, **options, progress=LoadingBar(line, "loading")) as engine:
        return measure_streams(engine, plan, n_vocab, banned, line.show)
