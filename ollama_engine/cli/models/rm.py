"""`ollama-engine rm`: removes models from the store."""

from __future__ import annotations

import argparse

from ollama_engine.cli.errors import UsageError
from ollama_engine.cli.store import model_store
from ollama_engine.errors import ModelNotFoundError
from ollama_engine.size_texts import size
from ollama_engine.store.lookup import is_packaged
from ollama_engine.store.names import ModelName

__all__ = ["add_arguments", "main"]

SPARED_SECONDS = 60.0
"""Younger files stay: another process may be about to make a model of them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    parser.add_argument("names", metavar="NAME", nargs="*", help="models of the store; blobs that no other model uses "
                        "go too")  # fmt: skip
    parser.add_argument("--unused", action="store_true", help="also remove blobs that no model uses, and what "
                        "interrupted downloads have left")  # fmt: skip


def main(args: argparse.Namespace) -> None:
    if not args.names and not args.unused:
        raise UsageError("there is no NAME, and no --unused; ollama-engine list shows the names")
    store = model_store()
    for name in map(ModelName.parse, args.names):
        try:
            store.delete(name)
        except ModelNotFoundError:
            if is_packaged(name):
                raise UsageError(f"{name.short} comes with the package, and cannot be removed") from None
            raise
        print(f"deleted {name.short}")
    if args.unused:
        removed = store.prune(claimed=SPARED_SECONDS, partial=SPARED_SECONDS)
        print(f"removed {removed.files} unused files, {size(removed.size)}")
