"""`ollama-engine quantize`: copies a GGUF file with smaller weights."""

from __future__ import annotations

import argparse
import sys

from ollama_engine.cli.options import model_path
from ollama_engine.cli.paths import existing
from ollama_engine.cli.progress import LoadingBar, StatusLine
from ollama_engine.convert import quantize_model
from ollama_engine.convert.quant.presets import ALIASES, PRESETS
from ollama_engine.size_texts import size

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    parser.add_argument("source", metavar="IN.gguf", help="a file with f32, f16 or bf16 weights (any part of a split "
                        "one)")  # fmt: skip
    parser.add_argument("out", metavar="OUT.gguf", help="the file to write")
    parser.add_argument("preset", metavar="TYPE", help=f"one of {', '.join([*PRESETS, *ALIASES])}")
    parser.add_argument("--overwrite", action="store_true", help="replace a file that exists")
    parser.add_argument("-t", "--threads", type=int, metavar="N", help="threads (default: all cores)")
    parser.add_argument("--imatrix", metavar="FILE", help="an importance matrix, as llama-imatrix measures it")


def main(args: argparse.Namespace) -> None:
    """Quantize. On a terminal, standard error shows a progress bar, and both sizes at the end."""
    source = existing(model_path(args.source))
    imatrix = None if args.imatrix is None else existing(args.imatrix)
    with StatusLine(sys.stderr) as line:
        bar = LoadingBar(line, f"writing {args.out}", eta=True)
        sizes = quantize_model(
            source, args.out, args.preset, threads=args.threads, overwrite=args.overwrite, imatrix=imatrix, progress=bar
        )
    print(args.out)
    print(f"{size(sizes.before)} -> {size(sizes.after)}", file=sys.stderr)
