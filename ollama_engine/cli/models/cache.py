"""`ollama-engine cache`: what the prefix store keeps on disk, to list, check and remove."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from ollama_engine.cli.errors import UsageError
from ollama_engine.cli.progress import LoadingBar, StatusLine
from ollama_engine.cli.tables import ago, decimal_size, size, table
from ollama_engine.errors import EngineError
from ollama_engine.runner.prefix_store.block_format import check_block
from ollama_engine.runner.prefix_store.folder_contents import files_of, prefix_folder, remove_model, stored_models

__all__ = ["add_arguments", "main"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    parser.add_argument("action", choices=("ls", "rm", "verify"), help="list what is stored, model by model; remove "
                        "it; or read all of it, and remove what is damaged")  # fmt: skip
    parser.add_argument("names", metavar="ID", nargs="*", help="models, by the IDs that ls shows, or their beginnings")
    parser.add_argument("--all", action="store_true", help="rm: what is stored of every model")
    parser.add_argument("--folder", metavar="FOLDER", default="on", help="the folder of prefix_store; by default that "
                        "in the user's cache folder")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="ls: print a JSON list with one object for each model")


def main(args: argparse.Namespace) -> None:
    folder = prefix_folder(args.folder)
    if folder is None:
        raise UsageError("--folder is the path of a folder")
    if args.action == "ls":
        _list(folder, as_json=args.json)
    elif args.action == "verify":
        _verify(folder)
    else:
        _remove(folder, args.names, every=args.all)


def _list(folder: Path, *, as_json: bool) -> None:
    models = stored_models(folder)
    if as_json:
        print(json.dumps([{"id": m.name, "model": m.model, "blocks": m.blocks, "size": m.nbytes, "used": m.used_at}
                          for m in models], indent=2))  # fmt: skip
        return
    now = time.time()
    rows = [
        (model.name[:12], model.model, str(model.blocks), decimal_size(model.nbytes), ago(now - model.used_at))
        for model in models
    ]
    print(table([("ID", "MODEL", "BLOCKS", "SIZE", "USED"), *rows], gap=4))


def _remove(folder: Path, names: list[str], *, every: bool) -> None:
    if not names and not every:
        raise UsageError("there is no ID, and no --all; ollama-engine cache ls shows the IDs")
    models = stored_models(folder)
    for name in names:
        if not any(model.name.startswith(name) for model in models):
            raise UsageError(f"nothing is stored under {name}; ollama-engine cache ls shows the IDs")
    chosen = [model for model in models if every or model.name.startswith(tuple(names))]
    for model in chosen:
        remove_model(folder, model)
        print(f"removed {model.blocks} blocks of {model.model}, {size(model.nbytes)}")


def _verify(folder: Path) -> None:
    files = [file for file in files_of(folder) if not file.path.name.startswith(".")]
    total, done, damaged = sum(file.nbytes for file in files), 0, 0
    with StatusLine(sys.stderr) as line:
        bar = LoadingBar(line, "reading blocks", eta=True)
        for file in files:
            try:
                check_block(file.path)
            except FileNotFoundError:  # a running engine has made room
                pass
            except (EngineError, ValueError) as error:
                damaged += 1
                file.path.unlink(missing_ok=True)
                print(f"removed: {error}", file=sys.stderr)
            done += file.nbytes
            bar(done, total)
    print(f"{len(files)} blocks, {size(total)}, {damaged} damaged ones removed")
