"""`ollama-engine embed`: texts become vectors, as JSON or as plain numbers, a line for each."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import islice
from typing import TYPE_CHECKING, get_args

import ollama_engine
from ollama_engine.cli.errors import UsageError
from ollama_engine.cli.options import add_model, add_options, build, model_path
from ollama_engine.cli.progress import LoadingBar, StatusLine
from ollama_engine.cli.texts import argument, decoded
from ollama_engine.config import EngineConfig, OneVector
from ollama_engine.errors import EngineError

if TYPE_CHECKING:
    from ollama_engine.engine import Engine
    from ollama_engine.runner.embedding import Embedding

__all__ = ["add_arguments", "main"]

NOT_ENGINE = ("parallel", "max_queue", "verify", "kv_cache_type")
"""One call at a time, and nothing of it is cached."""

AT_ONCE = 1024
"""Lines of standard input that one call embeds, so that long files are not held in memory."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    add_model(parser)
    parser.add_argument("texts", metavar="TEXT", nargs="*", help="what to embed; without it, each line of standard "
                        "input is a text")  # fmt: skip
    parser.add_argument("--plain", action="store_true", help="print the numbers alone, with spaces between them; "
                        'otherwise JSON: {"embedding": [...], "prompt_tokens": 5, "dropped_tokens": 0}')  # fmt: skip
    parser.add_argument("--pooling", choices=get_args(OneVector), help="how a vector is made of a text's tokens "
                        "(default: as the model's file says)")  # fmt: skip
    parser.add_argument("--dimensions", type=int, metavar="N", help="keep the first N numbers of each vector")
    parser.add_argument("--no-normalize", action="store_true", help="leave the lengths of vectors as they are "
                        "(default: 1)")  # fmt: skip
    parser.add_argument("--truncate", dest="on_overflow", action="store_const", const="truncate", default="error",
                        help="leave out the end of a text that is too long (default: an error)")  # fmt: skip
    add_options(parser, "engine", EngineConfig, skip=NOT_ENGINE)


def main(args: argparse.Namespace) -> None:
    """Embed and print."""
    config = build(EngineConfig, args, skip=NOT_ENGINE)
    given = [argument(text, f"text {number}") for number, text in enumerate(args.texts, 1)]
    if not given and (sys.stdin is None or sys.stdin.isatty()):
        raise UsageError("there is no TEXT; give some, or pipe lines into standard input")
    with _load(model_path(args.model), config) as engine:
        done = 0
        for texts in [given] if given else _piped():
            with _naming("text" if given else "line", done + 1):
                found = engine.embeddings(
                    texts, normalize=not args.no_normalize, dimensions=args.dimensions, pooling=args.pooling,
                    on_overflow=args.on_overflow,
                )  # fmt: skip
            done += len(texts)
            for embedding in found:
                print(plain(embedding) if args.plain else as_json(embedding))
            _tell_dropped(found)


@contextlib.contextmanager
def _naming(kind: str, first: int) -> Iterator[None]:
    """Errors about one text say which line, or argument, it was; `first` is the number of the first, from 1."""
    try:
        yield
    except EngineError as error:
        if error.text_number is None:
            raise
        # The first part is the number, as callers in Python count.
        where = f"{kind} {first + error.text_number}: "
        raise type(error)(where, *error.parts[1:], advice=error.advice) from None


def plain(embedding: Embedding) -> str:
    """Numbers that read back as the same float32, with spaces between them."""
    return " ".join(map(_number, embedding.vector.tolist()))


def as_json(embedding: Embedding) -> str:
    """One line of JSON."""
    rest = json.dumps({"prompt_tokens": embedding.prompt_tokens, "dropped_tokens": embedding.dropped_tokens})
    return f'{{"embedding": [{", ".join(map(_number, embedding.vector.tolist()))}], {rest[1:]}'


def _number(value: float) -> str:
    return f"{value:.9g}"


def _piped() -> Iterator[list[str]]:
    """Lines of standard input, some at a time. Raises InputError for one that is not UTF-8."""
    lines = (decoded(line, f"line {n}").rstrip("\r\n") for n, line in enumerate(sys.stdin.buffer, 1))
    while texts := list(islice(lines, AT_ONCE)):
        yield texts


def _tell_dropped(found: Sequence[Embedding]) -> None:
    dropped = [one.dropped_tokens for one in found if one.dropped_tokens]
    if dropped:
        cut = f"{len(dropped)} of {len(found)} texts were cut"
        print(f"warning: {cut}, by {sum(dropped)} tokens in all", file=sys.stderr)


def _load(path: str, config: EngineConfig) -> Engine:
    options = {field.name: getattr(config, field.name) for field in fields(config)}
    with StatusLine(sys.stderr) as line:
        return ollama_engine.Engine(path, **options, progress=LoadingBar(line, "loading"))
