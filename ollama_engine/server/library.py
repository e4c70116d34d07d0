"""Library: the models that can be loaded: those of the store, files of the command line, and the packaged ones."""

from __future__ import annotations

import logging
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from ollama_engine import demo
from ollama_engine.errors import EngineError, ModelNotFoundError
from ollama_engine.store.model_store import ModelStore
from ollama_engine.store.names import ModelName
from ollama_engine.store.stored_model import StoredModel
from ollama_engine.store.transfers import Places, SharedTransfers

log = logging.getLogger(__name__)

__all__ = ["PACKAGED", "Library", "of_file"]

PACKAGED: dict[str, Callable[[], Path]] = {"demo": demo.path, "demo-vision": demo.vision_path}


class Library:
    """Finds models by name: files of the command line first, then the store's, then the packaged ones.

    Names of HTTP requests never become paths.

    Attributes:
        store: the models on disk, if any.
        places: for pulls, pushes, creates and uploads at once.
        transfers: those of them that are under way, but for uploads, shared by those who ask for the same.

    Args:
        files: (name, path) of GGUF files.
        store: the models on disk; None for none.
        max_transfers: pulls, pushes, creates and uploads at once.
    """

    def __init__(
        self, files: tuple[tuple[str, Path], ...] = (), store: ModelStore | None = None, *, max_transfers: int = 16
    ) -> None:
        self._files = {ModelName.parse(name).key: (name, path) for name, path in files}
        self.store = store
        self.places = Places(max_transfers)
        self.transfers = SharedTransfers(self.places)

    def find(self, name: str) -> StoredModel:
        """The model of that name. Raises ModelNotFoundError; ConfigError for what is no name; ModelFormatError for a
        damaged blob.
        """
        parsed = ModelName.parse(name)
        if parsed.key in self._files:
            return of_file(*self._files[parsed.key])
        if self.store is not None:
            try:
                return self.store.find(parsed)
            except ModelNotFoundError:
                pass
        for packaged, path in PACKAGED.items():
            if ModelName.parse(packaged).key == parsed.key:
                return of_file(packaged, path())
        raise ModelNotFoundError(f"model '{name}' not found")

    def outside_store(self, name: ModelName) -> bool:
        """Whether it names a file of the command line, or a packaged model: neither can be removed."""
        return name.key in self._files or any(ModelName.parse(packaged).key == name.key for packaged in PACKAGED)

    def removed(self, model: StoredModel) -> bool:
        """Whether its name is gone, or another model's now."""
        try:
            return self.find(model.name).digest != model.digest
        except (ModelNotFoundError, FileNotFoundError):
            return True
        except (EngineError, OSError):  # a damaged one, or a disk that cannot be read now
            return False

    def prune(self) -> None:
        """Remove what interrupted calls have left in the store, where that can be written."""
        if self.store is not None:
            try:
                self.store.prune()
            except OSError as error:
                log.warning("blobs that no model uses are kept: %s", error)

    def list(self) -> list[StoredModel]:
        """All that `find` finds: models of the store and of the command line, the newest first, then packaged ones."""
        models = [of_file(*named) for named in self._files.values()]
        if self.store is not None:
            models += [model for model in self.store.list() if ModelName.parse(model.name).key not in self._files]
        models.sort(key=lambda model: -model.modified)
        listed = {ModelName.parse(model.name).key for model in models}
        packaged = [of_file(name, path()) for name, path in PACKAGED.items()]
        return models + [model for model in packaged if ModelName.parse(model.name).key not in listed]


def of_file(name: str, path: Path) -> StoredModel:
    """A GGUF file as a model."""
    facts = path.stat()
    digest = sha256(f"{path.resolve()}\0{facts.st_size}\0{facts.st_mtime_ns}".encode()).hexdigest()
    return StoredModel(ModelName.parse(name).short, digest, facts.st_size, facts.st_mtime, path)
