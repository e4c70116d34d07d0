"""What lies in a folder of prefixes: listed, counted and removed, by the files alone. It loads no engine."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ollama_engine import user_cache

__all__ = [
    "ABOUT",
    "LOCK",
    "PrefixesOfModel",
    "files_of",
    "prefix_folder",
    "remove_model",
    "remove_unused",
    "stored_models",
]

ABOUT = "model.json"
LOCK = ".lock"
LEAVE = 0.9
"""Share of the bound that is left when files are removed, so that not every write removes one."""
LEFT_OVER_SECONDS = 3600.0
"""A file that is still being written after this time was left by a process that was killed."""


def prefix_folder(option: str) -> Path | None:
    """The folder that the option `prefix_store` means; None for none. Raises OSError where the user has no home."""
    if option == "off":
        return None
    return user_cache.cache_folder() / "prefixes" if option == "on" else Path(os.path.abspath(option))


class StoredFile(NamedTuple):
    """A file of the store: of a block, or one that is being written."""

    used_at: float
    nbytes: int
    path: Path


class PrefixesOfModel(NamedTuple):
    """What the store has of one model in one layout of the cache."""

    name: str
    model: str
    """Name of the model's file."""
    blocks: int
    nbytes: int
    used_at: float


def remove_unused(folder: Path, most_bytes: int) -> int:
    """Remove the files that were not used for longest, where all together exceed a bound. Returns how many bytes."""
    files, now, removed = list(files_of(folder)), time.time(), 0
    for file in [file for file in files if file.path.name.startswith(".")]:
        files.remove(file)
        if now - file.used_at > LEFT_OVER_SECONDS:
            removed += _remove(file)
    total = sum(file.nbytes for file in files)
    if total <= most_bytes:
        return removed
    for file in sorted(files):
        if total <= most_bytes * LEAVE:
            break
        total -= file.nbytes
        removed += _remove(file)
    return removed


def _remove(file: StoredFile) -> int:
    try:
        file.path.unlink()
    except FileNotFoundError:  # another process was quicker
        return 0
    return file.nbytes


def files_of(folder: Path) -> Iterator[StoredFile]:
    """The files of blocks in a folder of the store, or in that of one model, in no order."""
    for directory, folders, names in os.walk(folder):
        folders.sort()
        for name in names:
            if name in (ABOUT, LOCK):
                continue
            path = Path(directory, name)
            with suppress(FileNotFoundError):
                status = path.stat()
                yield StoredFile(status.st_mtime, status.st_size, path)


def stored_models(folder: Path) -> list[PrefixesOfModel]:
    """What a store has, model by model, the latest used first."""
    models = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if not path.is_dir():
            continue
        files = [file for file in files_of(path) if not file.path.name.startswith(".")]
        try:
            about = json.loads((path / ABOUT).read_bytes())["model"]
        except (OSError, ValueError, KeyError, TypeError):
            about = "?"
        used_at = max((file.used_at for file in files), default=path.stat().st_mtime)
        models.append(PrefixesOfModel(path.name, str(about), len(files), sum(file.nbytes for file in files), used_at))
    return sorted(models, key=lambda model: -model.used_at)


def remove_model(folder: Path, model: PrefixesOfModel) -> None:
    """Remove what is stored of a model. A running engine goes on, and stores anew. Raises OSError."""
    shutil.rmtree(folder / model.name)
