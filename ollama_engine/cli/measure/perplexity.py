"""`ollama-engine perplexity`: how well a model predicts a text, by the rule of llama-perplexity."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from contextlib import closing
from typing import Any

from ollama_engine.cli.errors import InputError, UsageError
from ollama_engine.cli.options import add_model, add_options, build, model_path
from ollama_engine.cli.progress import LoadingBar, StatusLine, duration
from ollama_engine.cli.tables import pairs
from ollama_engine.cli.texts import decoded
from ollama_engine.config import EngineConfig
from ollama_engine.evaluate.perplexity import MIN_CONTEXT, Perplexity, chunk_logprobs, chunks, scored_from
from ollama_engine.runner.core.input_processor import refuse_encoder
from ollama_engine.runner.load.loading import Loaded, load

__all__ = ["add_arguments", "main"]

DEFAULT_CONTEXT = 512
"""llama-perplexity's default, and the context of most published figures for GGUF files."""
DECIDED = ("num_ctx", "parallel", "max_queue")
"""Engine options that the measurement decides."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    add_model(parser)
    parser.add_argument("file", metavar="FILE", help="the text, in UTF-8; - is standard input")
    parser.add_argument("--ctx", dest="num_ctx", type=int, default=DEFAULT_CONTEXT, metavar="N", help="tokens of "
                        f"a chunk, of which the second half is scored [>= {MIN_CONTEXT}] (default: {DEFAULT_CONTEXT})"
                        )  # fmt: skip
    parser.add_argument("--chunks", type=int, metavar="N", help="look at the first N chunks only (default: all)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_options(parser, "engine", EngineConfig, skip=DECIDED)


def main(args: argparse.Namespace) -> None:
    """Measure and print. On a terminal, standard error shows the figure so far."""
    if args.chunks is not None and args.chunks < 1:
        raise UsageError(f"--chunks is 1 or more, got {args.chunks}")
    if args.num_ctx < MIN_CONTEXT:
        raise UsageError(f"--ctx is {MIN_CONTEXT} or more, got {args.num_ctx}")
    config = build(EngineConfig, args, skip=DECIDED, num_ctx=args.num_ctx, parallel=1)
    text, path = _read(args.file), model_path(args.model)
    with StatusLine(sys.stderr) as line:
        rows = args.num_ctx - scored_from(args.num_ctx)
        with closing(load(path, config, LoadingBar(line, "loading"), logit_rows=rows)) as loaded:
            refuse_encoder(loaded)
            result = _measure(loaded, _chunks(loaded, text, args), line)
    facts = {"model": os.path.basename(path), "text": args.file, "ctx": args.num_ctx, **result}
    print(json.dumps(_finite(facts), indent=2) if args.json else _report(facts))


def _read(path: str) -> str:
    name = "standard input" if path == "-" else path
    data = _bytes(path)
    if not data:
        raise InputError(f"{name} is empty; there is nothing to predict")
    return decoded(data, name)


def _bytes(path: str) -> bytes:
    if path != "-":
        with open(path, "rb") as file:
            return file.read()
    if sys.stdin is None:
        raise UsageError("FILE is -, and standard input is closed")
    return sys.stdin.buffer.read()


def _chunks(loaded: Loaded, text: str, args: argparse.Namespace) -> list[list[int]]:
    """The chunks of the text. The text of a control token is ordinary text here, as in llama-perplexity."""
    tokenizer = loaded.tokenizer
    bos = tokenizer.bos_id if tokenizer.add_bos else None
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    return chunks(ids if bos is None else [bos, *ids], args.num_ctx, bos)[: args.chunks]


def _measure(loaded: Loaded, texts: list[list[int]], line: StatusLine) -> dict[str, Any]:
    started = time.perf_counter()
    score = Perplexity()
    for done, chunk in enumerate(texts, 1):
        score = score.plus(chunk_logprobs(loaded.executor, loaded.cache, chunk))
        left = (time.perf_counter() - started) / done * (len(texts) - done)
        line.show(f"chunk {done} of {len(texts)}: perplexity {score.value:.4f}  ETA {duration(left)}")
    return {
        "perplexity": score.value,
        "error": score.error,
        "chunks": len(texts),
        "tokens_scored": score.n_scored,
        "seconds": time.perf_counter() - started,
    }


def _finite(facts: dict[str, Any]) -> dict[str, Any]:
    """Replace infinity, which JSON lacks: the perplexity is infinite where the model excludes a token of the text."""
    return {name: None if value == math.inf else value for name, value in facts.items()}


def _report(facts: dict[str, Any]) -> str:
    seconds = facts["seconds"]
    speed = facts["chunks"] * facts["ctx"] / seconds
    return pairs((
        ("perplexity", f"{facts['perplexity']:.4f} +/- {facts['error']:.5f}"),
        ("tokens scored", f"{facts['tokens_scored']} in {facts['chunks']} chunks of {facts['ctx']}"),
        ("time", f"{seconds:.1f} s, {speed:.0f} tokens/s"),
    ))  # fmt: skip
