"""What lies in a folder of prefixes: listed, counted and removed, by the files alone. It loads no engine."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ollama_engine import user_cache
from ollama_engine.home_path import made_at_home

__all__ = [
    "ABOUT",
    "HITS",
    "LOCK",
    "PrefixesOfModel",
    "files_of",
    "make_prefix_folder",
    "prefix_folder",
    "remove_model",
    "remove_unused",
    "stored_models",
]

ABOUT, HITS = "model.json", "hits"
LOCK = ".lock"
LEAVE = 0.9
"""Share of the bound that is left when files are removed, so that not every write removes one."""
MODEL_NAME = re.compile(r"[0-9a-f]{32}")
GROUP_NAME = re.compile(r"[0-9a-f]{2}")
FILE_NAME = re.compile(r"[0-9a-f]{62}\.[0-9]+|\.[0-9a-f]+\.part")
"""Names that BlockFolder gives. Other files in the folder are not the store's: they are neither counted nor removed."""
FILES_AT_ONCE = 16
"""Files that are looked at without a pause: some 0.1 ms."""
LEFT_OVER_SECONDS = 3600.0
"""A file that is still being written after this time was left by a process that was killed."""


def make_prefix_folder(option: str) -> Path:
    """The folder that the option `prefix_store` means, made if it is not there. Raises OSError, with its name."""
    try:
        folder = prefix_folder(option)
        assert folder is not None
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        is_file = os.path.isfile(os.path.expanduser(option))
        reason = "it is a file; name a folder" if is_file else error.strerror or error
        told = f"prefix_store cannot keep prefixes here: {reason}"
        raise OSError(error.errno, told, str(option)) from None
    return folder


def prefix_folder(option: str) -> Path | None:
    """The folder that the option `prefix_store` means; None for none.

    Raises OSError where the user has no home, or `~name` names none.
    """
    if option == "off":
        return None
    if option == "on":
        return user_cache.cache_folder() / "prefixes"
    return Path(os.path.abspath(made_at_home(option)))


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
    hits: int
    """Prompts that went on from it, since it was made."""


def remove_unused(folder: Path, most_bytes: int, pause: Callable[[], None] = lambda: None) -> int:
    """Remove the files that were not used for longest, where all together exceed a bound. Returns how many bytes.

    `pause` is called after every FILES_AT_ONCE files that are listed, or removed.
    """
    files, now, removed = list(_slowly(files_of(folder), pause)), time.time(), 0
    for file in [file for file in files if file.path.name.startswith(".")]:
        files.remove(file)
        if now - file.used_at > LEFT_OVER_SECONDS:
            removed += _remove(file)
    total = sum(file.nbytes for file in files)
    if total <= most_bytes:
        return removed
    for file in _slowly(sorted(files), pause):
        if total <= most_bytes * LEAVE:
            break
        total -= file.nbytes
        removed += _remove(file)
    return removed


def _slowly(files: Iterable[StoredFile], pause: Callable[[], None]) -> Iterator[StoredFile]:
    for number, file in enumerate(files, 1):
        yield file
        if number % FILES_AT_ONCE == 0:
            pause()


def _remove(file: StoredFile) -> int:
    try:
        file.path.unlink()
    except FileNotFoundError:  # another process was quicker
        return 0
    return file.nbytes


def files_of(folder: Path) -> Iterator[StoredFile]:
    """The files of blocks in a folder of the store, in no order; files that are being written, too."""
    for model in _folders(folder, MODEL_NAME):
        yield from _model_files(model)


def _model_files(model: Path) -> Iterator[StoredFile]:
    for group in _folders(model, GROUP_NAME):
        with suppress(FileNotFoundError):
            for entry in os.scandir(group):
                with suppress(FileNotFoundError):
                    if FILE_NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        yield StoredFile(status.st_mtime, status.st_size, Path(entry.path))


def _folders(folder: Path, names: re.Pattern[str]) -> list[Path]:
    """Folders with names of the store, without links: a link may lead to any files."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        return sorted(
            Path(entry.path) for entry in entries if names.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        )
    return []


def stored_models(folder: Path) -> list[PrefixesOfModel]:
    """What a store has, model by model, the latest used first."""
    models = []
    for path in _folders(folder, MODEL_NAME):
        files = [file for file in _model_files(path) if not file.path.name.startswith(".")]
        about, hits = "?", 0
        with suppress(OSError, ValueError, KeyError, TypeError):
            about = json.loads((path / ABOUT).read_bytes())["model"]
        with suppress(OSError):
            hits = (path / HITS).stat().st_size
        nbytes = sum(file.nbytes for file in files)
        with suppress(FileNotFoundError):  # it is gone: another process removes it
            used_at = max((file.used_at for file in files), default=path.stat().st_mtime)
            models.append(PrefixesOfModel(path.name, str(about), len(files), nbytes, used_at, hits))
    return sorted(models, key=lambda model: -model.used_at)


def remove_model(folder: Path, model: PrefixesOfModel) -> None:
    """Remove what is stored of a model, and no file that is not the store's. A running engine stores anew.

    Raises OSError.
    """
    path = folder / model.name
    for file in _model_files(path):
        _remove(file)
    for name in (ABOUT, HITS):
        (path / name).unlink(missing_ok=True)
    for emptied in (*_folders(path, GROUP_NAME), path):
        with suppress(OSError):  # it is not empty: files of other programs, or an engine that writes
            emptied.rmdir()
