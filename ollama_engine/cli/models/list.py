"""`ollama-engine list`: the models of the store, as Ollama lists them, and then the packaged ones."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from ollama_engine.cli.store import ID_CHARACTERS, model_store
from ollama_engine.cli.tables import ago, table
from ollama_engine.size_texts import decimal_size
from ollama_engine.store.lookup import DEMO, DEMO_VISION, packaged_model

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    parser.add_argument("begin", metavar="NAME", nargs="?", default="", help="only names that begin so")
    parser.add_argument("--json", action="store_true", help="print a JSON list with one object for each model")


def main(args: argparse.Namespace) -> None:
    begin, store = args.begin.lower(), model_store()
    listed: list[dict[str, Any]] = [
        {"name": entry.name.short, "digest": entry.manifest.digest, "size": entry.manifest.size,
         "modified": entry.modified, "packaged": False}
        for entry in store.entries()
    ]  # fmt: skip
    listed = [facts for facts in [*listed, *_packaged()] if facts["name"].lower().startswith(begin)]
    for path, _ in store.broken():
        print(f"warning: {path} cannot be read; ollama-engine doctor says why", file=sys.stderr)
    if args.json:
        print(json.dumps(listed, indent=2))
        return
    rows = [(facts["name"], *_row(facts)) for facts in listed]
    print(table([("NAME", "ID", "SIZE", "MODIFIED"), *rows], gap=4))


def _packaged() -> list[dict[str, Any]]:
    """What comes with the package, by the names that commands take: the store may have a demo:latest of its own."""
    found = {name: Path(packaged_model(name).path).stat() for name in (DEMO, DEMO_VISION)}
    return [
        {"name": name, "digest": None, "size": file.st_size, "modified": file.st_mtime, "packaged": True}
        for name, file in found.items()
    ]


def _row(facts: dict[str, Any]) -> tuple[str, str, str]:
    size = decimal_size(facts["size"])
    if facts["packaged"]:
        return "(packaged)", size, "comes with ollama-engine"
    return facts["digest"][:ID_CHARACTERS], size, ago(time.time() - facts["modified"])
