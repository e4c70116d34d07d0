"""Library: the models that can be loaded: those of the store, files of the command line, and the packaged ones."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from ollama_engine import demo
from ollama_engine.errors import ModelNotFoundError
from ollama_engine.store.names import ModelName
from ollama_engine.store.stored_model import StoredModel

__all__ = ["Library"]

PACKAGED: dict[str, Callable[[], Path]] = {"demo": demo.path, "demo-vision": demo.vision_path}


class Library:
    """Finds models by name. Names of HTTP requests never become paths."""

    def __init__(self, files: tuple[tuple[str, Path], ...] = ()) -> None:
        self._files = {ModelName.parse(name).key: (name, path) for name, path in files}

    def find(self, name: str) -> StoredModel:
        """The model of that name. Raises ModelNotFoundError; ConfigError for what is no name."""
        wanted = ModelName.parse(name)
        if wanted.key in self._files:
            return of_file(*self._files[wanted.key])
        for packaged, path in PACKAGED.items():
            if ModelName.parse(packaged).key == wanted.key:
                return of_file(packaged, path())
        raise ModelNotFoundError(f"model '{name}' not found")

    def list(self) -> list[StoredModel]:
        """All models of the store and of the command line, the newest first."""
        return sorted((of_file(*named) for named in self._files.values()), key=lambda model: -model.modified)


def of_file(name: str, path: Path) -> StoredModel:
    """A GGUF file as a model."""
    facts = path.stat()
    digest = sha256(f"{path.resolve()}\0{facts.st_size}\0{facts.st_mtime_ns}".encode()).hexdigest()
    return StoredModel(ModelName.parse(name).short, digest, facts.st_size, facts.st_mtime, path)
