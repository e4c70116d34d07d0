"""`ollama-engine list`: the models of the store, as Ollama lists them."""

from __future__ import annotations

import argparse
import json
import sys
import time

from ollama_engine.cli.store import model_store
from ollama_engine.cli.tables import table

__all__ = ["add_arguments", "ago", "decimal_size", "main", "span"]

ID_CHARACTERS = 12


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


def decimal_size(nbytes: int) -> str:
    """Bytes in decimal units, as Ollama writes them: 4.7 GB, 91 MB."""
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "KB")):
        if nbytes >= unit:
            return f"{nbytes // unit} {name}" if nbytes >= 10 * unit else f"{nbytes / unit:.1f} {name}"
    return f"{nbytes} B"


def ago(seconds: float) -> str:
    """How long ago: "3 days ago"."""
    return "now" if seconds < 1 else f"{span(seconds)} ago"


def span(seconds: float) -> str:
    """A duration in its largest unit: "3 days"."""
    for unit, name in ((365 * 86400, "year"), (30 * 86400, "month"), (7 * 86400, "week"), (86400, "day"),
                       (3600, "hour"), (60, "minute")):  # fmt: skip
        if seconds >= unit:
            return _counted(int(seconds // unit), name)
    return _counted(int(seconds), "second")


def _counted(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"
