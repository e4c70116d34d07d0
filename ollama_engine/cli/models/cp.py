"""`ollama-engine cp`: gives a model of the store another name. The new name takes no disk space."""

from __future__ import annotations

import argparse

from ollama_engine.cli.errors import UsageError
from ollama_engine.cli.store import model_store
from ollama_engine.errors import ModelNotFoundError
from ollama_engine.store.lookup import is_packaged
from ollama_engine.store.names import ModelName

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    parser.add_argument("source", metavar="SOURCE", help="a model of the store")
    parser.add_argument("target", metavar="NAME", help="its new name, beside the one it has; a model of that name is "
                        "replaced")  # fmt: skip


def main(args: argparse.Namespace) -> None:
    source, target = ModelName.parse(args.source), ModelName.parse(args.target)
    try:
        model_store().copy(source, target)
    except ModelNotFoundError:
        if is_packaged(source):
            raise UsageError(
                f"{source.short} comes with the package, and is not in the store; write a Modelfile that "
                f"says FROM {args.source}, and call ollama-engine create {target.short}"
            ) from None
        raise
    print(f"copied {source.short} to {target.short}")
