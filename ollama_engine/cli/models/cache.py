"""`ollama-engine cache`: what the prefix store keeps on disk, to list, check and remove."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from ollama_engine.cli.errors import UsageError
from ollama_engine.cli.progress import LoadingBar, StatusLine
from ollama_engine.cli.tables import ago, table
from ollama_engine.errors import EngineError
from ollama_engine.runner.prefix_store.block_format import check_block
from ollama_engine.runner.prefix_store.folder_contents import (
    PrefixesOfModel,
    files_of,
    prefix_folder,
    remove_model,
    stored_models,
)
from ollama_engine.size_texts import size

__all__ = ["add_arguments", "main"]


ACTIONS = ("ls", "rm", "verify")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    parser.add_argument("action", choices=ACTIONS, metavar="|".join(ACTIONS), help="list what is stored, model by "
                        "model; remove it; or read all of it, and remove what is damaged")  # fmt: skip
    parser.add_argument("names", metavar="ID", nargs="*", default=[], help="models, by the IDs that ls shows, or their "
                        "beginnings")  # fmt: skip
    parser.add_argument("--all", action="store_true", help="rm: what is stored of every model")
    parser.add_argument("--folder", metavar="FOLDER", default="on", help="the folder of prefix_store; by default that "
                        "in the user's cache folder")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="ls: print a JSON list with one object for each model")


def main(args: argparse.Namespace) -> None:
    if not args.folder:
        raise UsageError("--folder is the path of a folder, got an empty one")
    folder = prefix_folder(args.folder)
    if folder is None or (args.folder != "on" and not folder.is_dir()):
        raise UsageError(f"there is no folder {args.folder}")
    models = stored_models(folder)
    for name in args.names:
        if not any(model.name.startswith(name) for model in models):
            raise UsageError(f"nothing is stored under {name}; ollama-engine cache ls shows the IDs")
    chosen = [model for model in models if not args.names or model.name.startswith(tuple(args.names))]
    if args.action == "ls":
        _list(chosen, as_json=args.json)
    elif args.action == "verify":
        _verify(folder, chosen)
    elif not args.names and not args.all:
        raise UsageError("there is no ID, and no --all; ollama-engine cache ls shows the IDs")
    else:
        for model in chosen:
            remove_model(folder, model)
            print(f"removed {model.model}: {model.blocks} blocks, {size(model.nbytes)}")


def _list(models: list[PrefixesOfModel], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([{"id": m.name, "model": m.model, "blocks": m.blocks, "size": m.nbytes, "used": m.used_at,
                           "hits": m.hits} for m in models], indent=2))  # fmt: skip
        return
    now = time.time()
    rows = [
        (model.name[:12], model.model, str(model.blocks), size(model.nbytes), str(model.hits), ago(now - model.used_at))
        for model in models
    ]
    print(table([("ID", "MODEL", "BLOCKS", "SIZE", "HITS", "USED"), *rows], gap=4))


def _verify(folder: Path, models: list[PrefixesOfModel]) -> None:
    names = {model.name for model in models}
    files = [file for file in files_of(folder) if file.path.parts[-3] in names and not file.path.name.startswith(".")]
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
    print(f"{len(files)} blocks, {size(total)}, {damaged} damaged and removed")
