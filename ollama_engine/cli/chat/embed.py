"""`ollama-engine embed`: computes embeddings of texts and images; prints JSON or plain numbers, a line for each."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from typing import TYPE_CHECKING, cast, get_args

import ollama_engine
from ollama_engine.cli.chat.images import image_of_flag
from ollama_engine.cli.errors import InputError, UsageError
from ollama_engine.cli.options import add_model, add_options, build, model_path
from ollama_engine.cli.progress import CountBar, LoadingBar, StatusLine
from ollama_engine.cli.texts import argument, decoded
from ollama_engine.config import EngineConfig, OneVector
from ollama_engine.errors import EngineError
from ollama_engine.segments import Media

if TYPE_CHECKING:
    from ollama_engine.engine import Engine
    from ollama_engine.runner.embed.results import Embedding
    from ollama_engine.runner.request.prompts import Prompt, Prompts

__all__ = ["add_arguments", "main"]

NOT_ENGINE = ("parallel", "max_queue", "verify", "kv_cache_type")
"""Engine options without effect here: this program makes one call at a time and caches nothing."""

AT_ONCE = 256
"""Texts per call: few enough that a long file is not held in memory and that progress can be shown."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    add_model(parser)
    parser.add_argument("texts", metavar="TEXT", nargs="*", help="what to embed; without it, each line of standard "
                        "input is a text")  # fmt: skip
    parser.add_argument(
        "--image",
        metavar="FILE",
        action="append",
        default=[],
        help="embed an image, behind the TEXTs; may be repeated (CLIP, SigLIP, Qwen3-VL-Embedding)",
    )
    parser.add_argument("--mmproj", dest="projector", metavar="FILE",
                        help="the model's part that reads images, where it is a file of its own")  # fmt: skip
    parser.add_argument("--plain", action="store_true", help="print the numbers alone, with spaces between them; "
                        'otherwise JSON: {"embedding": [...], "prompt_tokens": 5, "dropped_tokens": 0}')  # fmt: skip
    parser.add_argument("--pooling", choices=get_args(OneVector), help="how a vector is made of a text's tokens "
                        "(default: as the model's file says)")  # fmt: skip
    parser.add_argument("--dimensions", type=int, metavar="N", help="keep the first N numbers of each vector")
    parser.add_argument("--prompt-name", metavar="NAME", help="put this prompt of the model before each text (query, "
                        "document, ...; see docs/embeddings.md)")  # fmt: skip
    parser.add_argument("--task", metavar="NAME", help="the adapter that computes the texts (Jina 3)")
    parser.add_argument("--no-normalize", action="store_true", help="leave the lengths of vectors as they are "
                        "(default: 1)")  # fmt: skip
    parser.add_argument("--truncate", dest="on_overflow", action="store_const", const="truncate", default="error",
                        help="leave out the end of a text that is too long (default: an error)")  # fmt: skip
    add_options(parser, "engine", EngineConfig, skip=NOT_ENGINE)


def main(args: argparse.Namespace) -> None:
    config = build(EngineConfig, args, skip=NOT_ENGINE)
    given: list[Prompt] = [argument(text, f"text {number}") for number, text in enumerate(args.texts, 1)]
    given += [[Media(image_of_flag(path).data)] for path in args.image]
    if not given and (sys.stdin is None or sys.stdin.isatty()):
        raise UsageError("there is no TEXT and no --image; give some, or pipe lines into standard input")
    # The engine closes first: that ends a call left behind by an interrupt, so the pool's thread can end as well.
    with StatusLine(sys.stderr) as line, ThreadPoolExecutor(1) as pool, _load(line, args, config) as engine:
        bar = CountBar(line, "embedding", len(given) or None)
        done = 0
        for embeddings in _embedded(engine, pool, given, args):
            done += len(embeddings)
            line.clear()
            for embedding in embeddings:
                print(plain(embedding) if args.plain else as_json(embedding))
            _tell_dropped(embeddings)
            bar(done)


def _embedded(
    engine: Engine, pool: ThreadPoolExecutor, given: Sequence[Prompt], args: argparse.Namespace
) -> Iterator[list[Embedding]]:
    """Embeddings in batches: the next batch is computed while the caller prints this one.

    Raises InputError for a line that is not UTF-8, after the results of all lines before it.
    """
    kind, texts = ("text", iter(given)) if given else ("line", _piped())
    first, ahead = 1, None
    try:
        for some in _batches(texts):
            coming = pool.submit(_embed, engine, some, kind, first, args)
            first += len(some)
            if ahead is not None:
                yield ahead.result()
            ahead = coming
    except InputError:
        if ahead is not None:
            yield ahead.result()
        raise
    if ahead is not None:
        yield ahead.result()


def _batches(texts: Iterable[Prompt]) -> Iterator[list[Prompt]]:
    """Batches of `AT_ONCE` texts. The incomplete batch before an InputError is yielded first."""
    some: list[Prompt] = []
    try:
        for text in texts:
            some.append(text)
            if len(some) == AT_ONCE:
                yield some
                some = []
    except InputError:
        if some:
            yield some
        raise
    if some:
        yield some


def _embed(engine: Engine, texts: list[Prompt], kind: str, first: int, args: argparse.Namespace) -> list[Embedding]:
    with _naming(kind, first):
        return engine.embeddings(
            cast("Prompts", texts), normalize=not args.no_normalize, dimensions=args.dimensions, pooling=args.pooling,
            on_overflow=args.on_overflow, prompt_name=args.prompt_name, task=args.task,
        )  # fmt: skip


@contextlib.contextmanager
def _naming(kind: str, first: int) -> Iterator[None]:
    """Make errors about one text name its line or argument. `first` is the number of the batch's first text, from 1."""
    try:
        yield
    except EngineError as error:
        if error.text_number is None:
            raise
        # error.parts[0] is the index, which Python callers count from 0.
        where = f"{kind} {first + error.text_number}: "
        raise type(error)(where, *error.parts[1:], advice=error.advice) from None


def plain(embedding: Embedding) -> str:
    """The numbers with spaces between them, with enough digits to read back as the same float32."""
    return " ".join(map(_number, embedding.vector.tolist()))


def as_json(embedding: Embedding) -> str:
    """One line of JSON, without a newline: `embedding`, `prompt_tokens`, `dropped_tokens`."""
    rest = json.dumps({"prompt_tokens": embedding.prompt_tokens, "dropped_tokens": embedding.dropped_tokens})
    return f'{{"embedding": [{", ".join(map(_number, embedding.vector.tolist()))}], {rest[1:]}'


def _number(value: float) -> str:
    return f"{value:.9g}"


def _piped() -> Iterator[Prompt]:
    """Lines of standard input. Raises InputError for one that is not UTF-8."""
    return (decoded(line, f"line {n}").rstrip("\r\n") for n, line in enumerate(sys.stdin.buffer, 1))


def _tell_dropped(embeddings: Sequence[Embedding]) -> None:
    dropped = [embedding.dropped_tokens for embedding in embeddings if embedding.dropped_tokens]
    if dropped:
        cut = f"{len(dropped)} of {len(embeddings)} texts were cut"
        print(f"warning: {cut}, by {sum(dropped)} tokens in all", file=sys.stderr)


def _load(line: StatusLine, args: argparse.Namespace, config: EngineConfig) -> Engine:
    options = {field.name: getattr(config, field.name) for field in fields(config)}
    return ollama_engine.Engine(
        model_path(args.model), projector=args.projector, **options, progress=LoadingBar(line, "loading")
    )
