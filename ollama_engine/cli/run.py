"""`ollama-engine run`: load a model, then answer the prompt given, the one piped in, or one after the other."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from typing import TYPE_CHECKING

import ollama_engine
from ollama_engine.cli.answer import Answerer
from ollama_engine.cli.errors import UsageError
from ollama_engine.cli.interactive import Conversation, set_here
from ollama_engine.cli.options import add_model, add_options, build, model_path
from ollama_engine.cli.progress import LoadingBar, StatusLine
from ollama_engine.cli.texts import argument, decoded
from ollama_engine.config import EngineConfig
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.sample import SamplingParams

if TYPE_CHECKING:
    from ollama_engine.engine import Engine

__all__ = ["add_arguments", "main"]

NOT_SAMPLING = ("logprobs", "prompt_logprobs")
"""Sampling options whose results plain text cannot show."""
NOT_REQUEST = ("priority", "cache", "cache_salt")
"""One answer at a time, of one user: none is before it, and only the answers that follow share what was computed."""
NOT_SET = (*NOT_SAMPLING, *NOT_REQUEST)
NOT_ENGINE = ("parallel", "max_queue")
"""One answer at a time, and nobody waits."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    add_model(parser)
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="what to continue; without it, standard input up "
                        "to its end, or prompts one by one when that is a terminal")  # fmt: skip
    parser.add_argument("--echo", action="store_true", help="print the prompt before its answer")
    parser.add_argument("--verbose", action="store_true", help="print times, tokens/s and memory on standard error")
    add_options(parser, "sampling", SamplingParams, skip=NOT_SAMPLING)
    add_options(parser, "request", RequestOptions, skip=NOT_REQUEST)
    add_options(parser, "engine", EngineConfig, skip=NOT_ENGINE)


def main(args: argparse.Namespace) -> None:
    params = build(SamplingParams, args, skip=NOT_SAMPLING)
    request_options = build(RequestOptions, args, skip=NOT_REQUEST)
    config = build(EngineConfig, args, skip=NOT_ENGINE, parallel=1)
    path = model_path(args.model)
    interactive = args.prompt is None and _is_terminal()
    prompt = "" if interactive else _prompt(args.prompt)
    with _load(path, config, args.verbose) as engine:
        write = set_here(args.flags, NOT_SET) if interactive else args.flags
        answerer = Answerer(engine, write, verbose=args.verbose, echo=args.echo and not interactive)
        if interactive:
            Conversation(answerer, params, request_options, write, NOT_SET).run()
        else:
            answerer.answer(prompt, params, request_options)


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _prompt(given: str | None) -> str:
    """That on the command line, or standard input up to its end, without its last line break."""
    if given is not None:
        return argument(given, "PROMPT")
    if sys.stdin is None:
        raise UsageError("there is no PROMPT, and standard input is closed")
    return decoded(sys.stdin.buffer.read(), "standard input").removesuffix("\n")


def _load(path: str, config: EngineConfig, verbose: bool) -> Engine:
    started = time.perf_counter()
    options = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    with StatusLine(sys.stderr) as line:
        engine = ollama_engine.Engine(path, **options, progress=LoadingBar(line, "loading"))
    if verbose:
        seconds = time.perf_counter() - started
        info = engine.info
        attention = "on" if info.flash_attention else "off"
        print(
            f"loaded in {seconds:.2f} s: {info.architecture}, num_ctx {info.num_ctx}, {info.threads} threads, "
            f"flash attention {attention}, cache {config.kv_cache_type}\n\n{engine.memory}\n",
            file=sys.stderr,
        )
    return engine
