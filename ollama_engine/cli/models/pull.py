"""`ollama-engine pull`: downloads a model into the store, from a registry or from the Hugging Face Hub."""

from __future__ import annotations

import argparse

from ollama_engine.cli.store import model_store
from ollama_engine.cli.transfers import pull_model

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    parser.add_argument(
        "model", metavar="NAME", help="[HOST/][USER/]MODEL[:TAG], or hf.co/USER/REPOSITORY[:QUANTIZATION]"
    )
    parser.add_argument("--insecure", action="store_true", help="speak http to the registry")


def main(args: argparse.Namespace) -> None:
    store = model_store()
    pull_model(store, args.model, insecure=args.insecure)
    print(f"pulled {store.find(args.model).name}")
