"""`ollama-engine cp`: gives a model of the store another name. The new name takes no disk space."""

from __future__ import annotations

import argparse

from ollama_engine.cli.store import model_store
from ollama_engine.store.names import ModelName

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    parser.add_argument("source", metavar="SOURCE", help="a model of the store")
    parser.add_argument("target", metavar="NAME", help="its new name, beside the one it has; a model of that name is "
                        "replaced")  # fmt: skip


def main(args: argparse.Namespace) -> None:
    source, target = ModelName.parse(args.source), ModelName.parse(args.target)
    model_store().copy(source, target)
    print(f"copied {source.short} to {target.short}")
