"""A program: each change of a store is ended at each of its file operations in turn, as by kill -9, and looked at then.

python -m tests.store.dying_at_every_step FOLDER prints how many operations each change has.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ollama_engine.errors import ModelNotFoundError
from ollama_engine.store import ModelName, ModelStore
from ollama_engine.store.blobs import BlobStore
from ollama_engine.store.create import Recipe, create
from ollama_engine.store.download import _Part, _Partial
from ollama_engine.store.manifest import Layer
from ollama_engine.store.sources import SourceFile
from tests.store.layout import check_blobs, files, put_model, sha256
from tests.support.tiny import write_tiny_llama
from tests.support.waiting import status_of

OPERATIONS = ("replace", "rename", "link", "unlink", "rmdir", "mkdir", "fsync", "utime", "ftruncate")
LIBRARY = "registry.ollama.ai/library"
ALIVE, DEAD = 0, 9
MODEL, OTHER = ModelName.parse("m"), ModelName.parse("other")


def ended_at(step: int, change: Callable[[], None]) -> int:
    """Make a change in a child process that ends before its file operation number `step`. The exit code."""
    child = os.fork()
    if child == 0:
        left = itertools.count(step, -1)

        def counted(operation: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **keywords: Any) -> Any:
                if next(left) == 0:
                    os._exit(DEAD)
                return operation(*arguments, **keywords)

            return call

        kept = getattr(pathlib, "_NormalAccessor", None)  # with Python 3.10 paths take functions of os at the import
        for name in OPERATIONS:
            operation = counted(getattr(os, name))
            setattr(os, name, operation)
            if hasattr(kept, name):
                setattr(kept, name, staticmethod(operation))
        try:
            change()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            os._exit(1)
        os._exit(ALIVE)
    return os.waitstatus_to_exitcode(status_of(child))


def check_sound(store: ModelStore) -> None:
    """Models that are listed are whole; without the blobs that nothing uses, nothing else is there."""
    check_blobs(store)
    assert store.find(OTHER), "it was there before, and nobody has deleted it"


def check_clean(store: ModelStore) -> None:
    store.prune(claimed=0, partial=0)
    used = {f"blobs/{layer.digest.replace(':', '-')}" for entry in store.entries() for layer in entry.manifest.blobs}
    found = files(store.folder)
    assert {name for name in found if name.startswith("blobs/")} == used, found
    assert sum(name.startswith("manifests/") for name in found) == len(store.entries()), found


def try_all_steps(folder: Path, prepare: Callable[[ModelStore], None], change: Callable[[ModelStore], None]) -> int:
    """End a change at each of its steps; look, make it again, look. Returns the number of steps."""
    for step in itertools.count():
        shutil.rmtree(folder, ignore_errors=True)
        store = ModelStore(folder)
        put_model(folder, f"{LIBRARY}/other/latest", [("model", b"GGUF other"), ("system", b"shared")])
        prepare(store)
        code = ended_at(step, partial(change, store))
        assert code in (ALIVE, DEAD), (step, code)
        check_sound(store)
        if code == DEAD:
            try:
                change(store)
            except ModelNotFoundError:
                assert change is delete
            check_sound(store)
        check_clean(store)
        if change is delete:
            assert [entry.name.model for entry in store.entries()] == ["other"]
        else:
            assert store.find(MODEL).system == "shared"
        if code == ALIVE:
            return step
    raise AssertionError("count() has no end")


def put_one(store: ModelStore) -> None:
    put_model(store.folder, f"{LIBRARY}/m/latest", [("model", b"GGUF one"), ("system", b"shared")])


def put_old(store: ModelStore) -> None:
    put_model(store.folder, f"{LIBRARY}/m/latest", [("model", b"GGUF old"), ("system", b"old")])


def delete(store: ModelStore) -> None:
    store.delete(MODEL)


def copy(store: ModelStore) -> None:
    store.copy(OTHER, MODEL)


def download(store: ModelStore) -> None:
    """The end of a download, and the manifest of what was downloaded."""
    data = b"GGUF other"
    layer = Layer.of("model", f"sha256:{sha256(data)}", len(data))
    again = BlobStore(store.folder / "unused")
    assert not again.has(layer)
    begun = _Partial(layer, store.blobs)
    begun.path.write_bytes(data)
    begun.parts = [_Part(0, 0, len(data), len(data))]
    begun.save(begun.parts[0])
    begun.finish("host")
    copy(store)


def main(folder: Path) -> None:
    source = write_tiny_llama(folder / "tiny.gguf", n_layer=1, metadata={"general.file_type": 0}).path

    def make(store: ModelStore) -> None:
        recipe = Recipe(files=[SourceFile("tiny.gguf", Path(source))], quantize="q8_0", system="shared")
        create(store, MODEL, recipe, lambda progress: None)

    changes = {
        "delete": (put_one, delete), "copy": (lambda store: None, copy), "replace": (put_old, copy),
        "download": (lambda store: None, download), "create": (put_old, make),
    }  # fmt: skip
    for name, (prepare, change) in changes.items():
        print(name, try_all_steps(folder / "store", prepare, change), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
