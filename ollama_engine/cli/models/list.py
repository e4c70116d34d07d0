"""`ollama-engine list`: the models of the store, as Ollama lists them."""

from __future__ import annotations

import argparse
import json
import sys
import time

from ollama_engine.cli.store import ID_CHARACTERS, model_store
from ollama_engine.cli.tables import ago, table
from ollama_engine.size_texts import decimal_size

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    parser.add_argument("begin", metavar="NAME", nargs="?", default="", help="only names that begin so")
    parser.add_argument("--json", action="store_true", help="print a JSON list with one object for each model")


def main(args: argparse.Namespace) -> None:
    begin, store = args.begin.lower(), model_store()
    entries = [entry for entry in store.entries() if entry.name.short.lower().startswith(begin)]
    for path, _ in store.broken():
        print(f"warning: {path} cannot be read; ollama-engine doctor says why", file=sys.stderr)
    if args.json:
        facts = [
            {"name": entry.name.short, "digest": entry.manifest.digest, "size": entry.manifest.size,
             "modified": entry.modified}
            for entry in entries
        ]  # fmt: skip
        print(json.dumps(facts, indent=2))
        return
    now = time.time()
    rows = [
        (
            entry.name.short,
            entry.manifest.digest[:ID_CHARACTERS],
            decimal_size(entry.manifest.size),
            ago(now - entry.modified),
        )
        for entry in entries
    ]
    print(table([("NAME", "ID", "SIZE", "MODIFIED"), *rows], gap=4))
