"""`ollama-engine convert`: converts a model's folder, as Hugging Face publishes it, to one GGUF file."""

from __future__ import annotations

import argparse
import sys

from ollama_engine.cli.options import model_path
from ollama_engine.cli.paths import existing
from ollama_engine.cli.progress import LoadingBar, StatusLine
from ollama_engine.convert import convert_model
from ollama_engine.convert.outtype import FILE_TYPES
from ollama_engine.size_texts import size

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    parser.add_argument("source", metavar="SRC", help="the folder with config.json, the weights and the tokenizer")
    parser.add_argument("-o", "--out", required=True, metavar="OUT.gguf", help="the file to write")
    parser.add_argument("--outtype", choices=FILE_TYPES, default="f16", help="type of the matrices (default: f16)")
    parser.add_argument("--no-vision", action="store_true", help="leave out the part that reads images, as llama.cpp "
                        "wants it")  # fmt: skip
    parser.add_argument("--target-model", metavar="MODEL", help="the model that an EAGLE-3 head drafts for: a GGUF "
                        "file or a name of the store")  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace a file that exists")
    parser.add_argument("-t", "--threads", type=int, metavar="N", help="threads (default: all cores)")


def main(args: argparse.Namespace) -> None:
    """Convert. On a terminal, standard error shows a progress bar, and both sizes at the end."""
    target_model = None if args.target_model is None else model_path(args.target_model)
    with StatusLine(sys.stderr) as line:
        bar = LoadingBar(line, f"writing {args.out}", eta=True)
        sizes = convert_model(
            existing(args.source, hint="; SRC is the folder of a model as Hugging Face publishes it"),
            args.out,
            args.outtype,
            vision=not args.no_vision,
            threads=args.threads,
            overwrite=args.overwrite,
            progress=bar,
            target_model=target_model,
        )
    print(args.out)
    print(f"{size(sizes.before)} -> {size(sizes.after)}", file=sys.stderr)
