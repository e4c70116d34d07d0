"""`ollama-engine create`: makes a model of the store as a Modelfile says."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ollama_engine.cli.errors import InputError, UsageError
from ollama_engine.cli.options import model_path
from ollama_engine.cli.store import model_store
from ollama_engine.cli.texts import decoded
from ollama_engine.cli.transfers import follow, pull_model
from ollama_engine.errors import ConfigError, ModelNotFoundError
from ollama_engine.store.create import Recipe, create_model
from ollama_engine.store.modelfile import Modelfile, parse_modelfile
from ollama_engine.store.names import ModelName
from ollama_engine.store.parameters import parse_parameters
from ollama_engine.store.sources import SourceFile, folder_files

if TYPE_CHECKING:
    from ollama_engine.store.model_store import ModelStore

__all__ = ["add_arguments", "main"]

PACKAGED = ("demo", "demo-vision")
WHAT_IT_IS = "; a Modelfile says how a model is made, such as FROM model.gguf, and --file names it"
KEPT = ("renderer", "parser", "requires")
"""Commands that only other engines read; they stay in the model's config."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of this command."""
    parser.add_argument("name", metavar="NAME", help="of the new model; one that has this name is replaced")
    parser.add_argument("-f", "--file", metavar="FILE", default="Modelfile", help="the Modelfile, - for standard input "
                        "(default: Modelfile)")  # fmt: skip
    parser.add_argument("-q", "--quantize", metavar="TYPE", default="", help="make weights that are floats smaller: "
                        "q8_0, q4_K_M, q4_K_S ...")  # fmt: skip


def main(args: argparse.Namespace) -> None:
    name, store = ModelName.parse(args.name), model_store()
    modelfile, home = _read(args.file)
    recipe = recipe_of(modelfile, home, store, args.quantize)

    follow(f"creating {name.short}", lambda report: create_model(store, name, recipe, report))
    print(f"created {name.short}")


def _read(file: str) -> tuple[Modelfile, Path]:
    """The Modelfile, and the folder that its paths are relative to. Raises InputError, which names the line."""
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except FileNotFoundError as error:
        raise FileNotFoundError(error.errno, f"{error.strerror}{WHAT_IT_IS}", file) from None
    source = "standard input" if file == "-" else file
    try:
        return parse_modelfile(decoded(data, source)), Path() if file == "-" else Path(file).parent
    except ConfigError as error:
        raise InputError(str(error) if source == "Modelfile" else f"{source}: {error}") from None


def recipe_of(modelfile: Modelfile, home: Path, store: ModelStore, quantize: str) -> Recipe:
    """The recipe that a Modelfile describes. Pulls a base model that is not in the store.

    Raises UsageError for two models in FROM lines, ConfigError for wrong parameters, and what pulls raise.
    """
    base: ModelName | None = None
    files: list[SourceFile] = []
    for text in modelfile.values("FROM"):
        path = home / os.path.expanduser(text)
        if path.is_dir():
            files += folder_files(path)
        elif path.exists():
            files.append(SourceFile(path.name, path.resolve()))
        elif text in PACKAGED:
            files.append(SourceFile(f"{text}.gguf", Path(model_path(text))))
        elif base is not None:
            raise UsageError(f"a model is made from one other model, got {base.short} and {text}")
        else:
            base = _base(store, text)
    messages = [{"role": c.name, "content": c.value} for c in modelfile.commands if c.kind == "MESSAGE"]
    config = {kind: modelfile.last(kind.upper()) for kind in KEPT}
    return Recipe(
        base=base,
        files=files,
        adapters=[_adapter(home / os.path.expanduser(text)) for text in modelfile.values("ADAPTER")],
        quantize=quantize,
        template=modelfile.last("TEMPLATE"),
        system=modelfile.last("SYSTEM"),
        parameters=parse_parameters((c.name, c.value) for c in modelfile.commands if c.kind == "PARAMETER"),
        messages=messages or None,
        licenses=modelfile.values("LICENSE"),
        config={kind: text for kind, text in config.items() if text is not None},
    )


def _base(store: ModelStore, text: str) -> ModelName:
    try:
        name = ModelName.parse(text)
    except ConfigError:
        raise FileNotFoundError(2, "FROM names no file that is there, and is no name of a model", text) from None
    try:
        store.entry(name)
    except ModelNotFoundError:
        print(f"{name.short} is not in the store yet: downloading it to {store.folder}", file=sys.stderr)
        pull_model(store, text, insecure=False)
    return name


def _adapter(path: Path) -> SourceFile:
    if not path.exists():
        raise FileNotFoundError(2, "ADAPTER names no file that is there", str(path))
    return SourceFile(path.name, path.resolve())
