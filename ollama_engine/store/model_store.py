"""ModelStore: the models in a folder, in the layout that Ollama has on disk."""

from __future__ import annotations

import builtins
import logging
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ollama_engine.errors import ConfigError, EngineError, ModelFormatError, ModelNotFoundError
from ollama_engine.file_lock import held
from ollama_engine.home_path import made_at_home
from ollama_engine.new_file import flush_folder, write_new_file
from ollama_engine.store.blobs import BlobStore, damaged
from ollama_engine.store.manifest import MAX_BYTES, Layer, Manifest, hex_of
from ollama_engine.store.names import ModelName
from ollama_engine.store.reading import stored_model
from ollama_engine.store.stored_model import StoredModel

__all__ = ["Entry", "ModelStore", "Pruned", "default_folder"]

logger = logging.getLogger(__name__)

CLAIM_SECONDS = 3600.0
"""How long a blob that was written or asked for is kept for the model that will be made of it."""
PARTIAL_SECONDS = 7 * 86400.0
"""How long an interrupted download is kept, to be resumed."""


def default_folder() -> Path:
    """Ollama's: what OLLAMA_MODELS names, or ~/.ollama/models. Raises FileNotFoundError for `~name` of no user."""
    named = os.environ.get("OLLAMA_MODELS", "").strip(" \t\"'")
    return Path(made_at_home(named)) if named else Path.home() / ".ollama" / "models"


@dataclass(frozen=True)
class Entry:
    """A manifest in the store, whether its model can be loaded or not.

    Attributes:
        name: by its place in the folder.
        manifest: what it is made of.
        modified: seconds since 1970.
    """

    name: ModelName
    manifest: Manifest
    modified: float


@dataclass(frozen=True, slots=True)
class Pruned:
    """Files that were removed, and their bytes."""

    files: int = 0
    size: int = 0


class ModelStore:
    """Models in a folder. Safe to use from several threads and processes at once, and to be killed at any moment.

    A manifest is written when all its blobs are there, and removed before any of them is. So a model that is listed is
    whole, and what is left of an interrupted call is a file that nothing refers to: `prune` removes those.

    Args:
        folder: with `manifests` and `blobs`; Ollama's where None. It is made when something is written.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = default_folder() if folder is None else Path(folder)
        self.blobs = BlobStore(self.folder)
        self._manifests = self.folder / "manifests"

    # -- reading -------------------------------------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """All manifests, the newest first. Files that are none are left out; `broken` tells them."""
        entries = []
        for name, path in self._files():
            with suppress(EngineError, OSError):
                entries.append(_entry(name, path))
        return sorted(entries, key=lambda entry: -entry.modified)

    def broken(self) -> list[tuple[Path, str]]:
        """Files below `manifests` that cannot be read as one, and why."""
        faults = []
        for name, path in self._files():
            try:
                _entry(name, path)
            except (EngineError, OSError) as error:
                faults.append((path, str(error)))
        return faults

    def list(self) -> list[StoredModel]:
        """All models that can be loaded, the newest first."""
        models = []
        for entry in self.entries():
            try:
                models.append(stored_model(entry.name.short, entry.manifest, entry.modified, self.blobs))
            except EngineError as error:
                logger.debug("%s is not listed: %s", entry.name.short, error)
        return models

    def entry(self, name: ModelName) -> Entry:
        """A model's manifest, whatever case its name is written in. Raises ModelNotFoundError, ModelFormatError."""
        place = self._existing(name)
        if place is None:
            raise ModelNotFoundError(f"model '{name.short}' not found")
        try:
            return _entry(*place)
        except FileNotFoundError:
            raise ModelNotFoundError(f"model '{name.short}' not found") from None

    def find(self, name: ModelName | str) -> StoredModel:
        """A model to load. Raises ModelNotFoundError; ModelFormatError where a blob is missing or has another size."""
        entry = self.entry(ModelName.parse(name) if isinstance(name, str) else name)
        for layer in entry.manifest.blobs:
            if not self.blobs.has(layer):
                raise damaged(self.blobs, layer).behind(f"model '{entry.name.short}': ")
        return stored_model(entry.name.short, entry.manifest, entry.modified, self.blobs)

    # -- changing ------------------------------------------------------------------------------------------------------

    def put(self, name: ModelName, manifest: Manifest) -> None:
        """Give a model its name; one that had it before is replaced, and its blobs removed where none uses them.

        Raises ModelFormatError where a blob is not there.
        """
        with held(self.blobs.lock_path):
            for layer in manifest.blobs:
                if not self.blobs.has(layer):
                    raise damaged(self.blobs, layer)
            before = self._existing(name)
            old = None
            if before is not None:
                name = before[0]
                with suppress(EngineError, OSError):
                    old = _entry(*before)
            path = self._path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_new_file(path, len(manifest.data), lambda file: file.write(manifest.data), overwrite=True)
            if old is not None and old.manifest.digest != manifest.digest:
                self._discard(old)

    def copy(self, source: ModelName, target: ModelName) -> None:
        """Give a model another name too. Raises ModelNotFoundError."""
        self.put(target, self.entry(source).manifest)

    def delete(self, name: ModelName) -> None:
        """Remove a model, and the blobs that no other one uses. Raises ModelNotFoundError.

        A blob that was written or claimed since the model was made stays: another model is being made of it.
        """
        with held(self.blobs.lock_path):
            place = self._existing(name)
            if place is None:
                raise ModelNotFoundError(f"model '{name.short}' not found")
            found, path = place
            entry = None
            with suppress(EngineError):
                entry = _entry(found, path)
            path.unlink()
            flush_folder(path.parent)
            self._remove_empty(path.parent)
            if entry is not None:
                self._discard(entry)

    def discard(self, layers: Iterable[Layer]) -> None:
        """Remove blobs that the caller has made for itself, but not those that a model uses."""
        with held(self.blobs.lock_path):
            used = self._used()
            for layer in layers:
                if used is not None and hex_of(layer.digest) not in used:
                    self.blobs.path(layer.digest).unlink(missing_ok=True)

    def prune(self, *, claimed: float = CLAIM_SECONDS, partial: float = PARTIAL_SECONDS) -> Pruned:
        """Remove blobs that no model uses, and what interrupted downloads and writes have left.

        `claimed` and `partial`: files younger than so many seconds stay. Nothing is removed while a manifest cannot be
        read: what it needs is not known then.
        """
        removed = Pruned()
        if not self.blobs.folder.exists():
            return removed
        with held(self.blobs.lock_path):
            used = self._used()
            if used is None:
                return removed
            unused = [path for path in self.blobs.all() if hex_of(path.name) not in used]
            aged = [(path, claimed) for path in unused] + [(path, partial) for path in self.blobs.leftovers()]
            aged += [(path, claimed) for path in self._manifests.glob("**/.*.part")]
            for path, limit in aged:
                with suppress(FileNotFoundError):
                    if time.time() - self.blobs.wanted_at(path) >= limit and not self.blobs.is_downloading(path):
                        size = path.stat().st_size
                        path.unlink()
                        removed = Pruned(removed.files + 1, removed.size + size)
            self.blobs.forget_claims(claimed)
        return removed

    def unused(self) -> builtins.list[Path]:
        """Blobs that no model uses; none while a manifest cannot be read."""
        used = self._used()
        return [] if used is None else [path for path in self.blobs.all() if hex_of(path.name) not in used]

    # -- places --------------------------------------------------------------------------------------------------------

    def _path(self, name: ModelName) -> Path:
        return self._manifests / name.host / name.namespace / name.model / name.tag

    def _files(self) -> Iterator[tuple[ModelName, Path]]:
        """Every file that is in a manifest's place, with its name."""
        for path in sorted(self._manifests.glob("*/*/*/*")):
            parts = path.relative_to(self._manifests).parts
            with suppress(ConfigError):
                name = ModelName.of_parts(*parts)
                if path.is_file():
                    yield name, path

    def _existing(self, name: ModelName) -> tuple[ModelName, Path] | None:
        """Where a name's manifest is, in the case that it has on disk."""
        path = self._path(name)
        if path.is_file():
            return name, path
        return next(((found, path) for found, path in self._files() if found.key == name.key), None)

    def _remove_empty(self, folder: Path) -> None:
        with suppress(OSError):  # of a folder that is not empty
            while folder != self._manifests:
                folder.rmdir()
                folder = folder.parent

    # -- blobs that nothing uses ---------------------------------------------------------------------------------------

    def _used(self) -> set[str] | None:
        """Digits of all blobs that manifests name; None where one cannot be read."""
        used: set[str] = set()
        for name, path in self._files():
            try:
                used.update(hex_of(layer.digest) for layer in _entry(name, path).manifest.blobs)
            except (EngineError, OSError) as error:
                logger.warning("blobs are kept, since the manifest %s cannot be read: %s", path, error)
                return None
        return used

    def _discard(self, gone: Entry) -> None:
        """Remove the blobs of a model that is gone, but not those that others use or have asked for since."""
        used = self._used()
        if used is None:
            return
        for layer in gone.manifest.blobs:
            path = self.blobs.path(layer.digest)
            with suppress(FileNotFoundError):
                wanted = self.blobs.wanted_at(path)
                claimed = wanted > gone.modified and time.time() - wanted < CLAIM_SECONDS
                if hex_of(layer.digest) not in used and not claimed:
                    path.unlink()


def _entry(name: ModelName, path: Path) -> Entry:
    with open(path, "rb") as file:
        data = file.read(MAX_BYTES + 1)
        modified = os.fstat(file.fileno()).st_mtime
    if len(data) > MAX_BYTES:
        raise ModelFormatError(f"{path}: a manifest has at most {MAX_BYTES >> 20} MiB")
    try:
        return Entry(name, Manifest.parse(data), modified)
    except ModelFormatError as error:
        raise error.behind(f"{path}: ") from None
