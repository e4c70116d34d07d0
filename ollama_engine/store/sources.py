"""Files that a model is made of -> layers: GGUF files by what they hold, safetensors through the converter."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from ollama_engine.convert import convert_model
from ollama_engine.convert.joining import join_model
from ollama_engine.errors import ConfigError, EngineError, ModelFormatError, UnsupportedModelError
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.store.blobs import TEMPORARY
from ollama_engine.store.manifest import Layer
from ollama_engine.store.model_store import ModelStore
from ollama_engine.store.transfers import Report, TransferProgress

__all__ = ["SourceFile", "file_layers", "folder_files", "is_part", "joined_layer"]

CHECKPOINTS: Final = (".safetensors", ".bin", ".pth")
CONVERTED_TYPE: Final = "f16"
_PART: Final = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that a model is made of: one on disk, or a blob that is in the store already.

    Attributes:
        name: its path in the model's folder ("model.gguf", "config.json").
        path: where it is; None for a blob.
        digest: of the blob.
    """

    name: str
    path: Path | None = None
    digest: str = ""


def folder_files(folder: Path) -> list[SourceFile]:
    """The files of a folder and those below it, hidden ones left out."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [(path.relative_to(folder).as_posix(), path) for path in found]
    return [SourceFile(name, path) for name, path in names if not any(part[0] == "." for part in name.split("/"))]


def file_layers(
    store: ModelStore, files: Sequence[SourceFile], report: Report, *, adapters: bool = False
) -> list[Layer]:
    """The layers that these files are. GGUF files become blobs as they are, a folder with safetensors is converted.

    Raises ConfigError for a blob that is not in the store or a name that leads out of the folder; ModelFormatError and
    UnsupportedModelError for files that are no model.
    """
    for file in files:
        _check_name(file.name)
        if file.path is None and store.blobs.claim(file.digest) is None:
            raise ConfigError(f"blob {file.digest} ({file.name}) is not in the store; upload it first")
    if any(file.name.endswith(CHECKPOINTS) for file in files):
        if adapters:
            raise UnsupportedModelError("adapters are GGUF files; those of safetensors cannot be converted")
        return [_converted(store, files, report)]
    layers = [_gguf_layer(store, file, report, adapter=adapters) for file in files if not is_part(file.name)]
    groups: dict[str, list[SourceFile]] = {}
    for file in files:
        if is_part(file.name):
            groups.setdefault(_PART.sub("", file.name), []).append(file)
    layers += [joined_layer(store, parts, report) for parts in groups.values()]
    return layers


def _check_name(name: str) -> None:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name:
        raise ConfigError(f"a file's name is a path in the model's folder, got {name!r:.120}")


def _gguf_layer(store: ModelStore, file: SourceFile, report: Report, *, adapter: bool) -> Layer:
    digest = file.digest
    if file.path is not None:
        _kind_of(file.path, adapter=adapter)  # before a large file is copied in vain

        def progress(done: int, total: int) -> None:
            report(TransferProgress(f"copying {file.name}", "", total, done))

        digest = store.blobs.adopt(file.path, progress)
    path = store.blobs.path(digest)
    kind = _kind_of(path, adapter=adapter)
    report(TransferProgress(f"{'creating new' if file.path else 'using existing'} layer {digest}"))
    return Layer.of(kind, digest, path.stat().st_size)


def _kind_of(path: Path, *, adapter: bool) -> str:
    """The kind of a file: "model", "projector" or "adapter". Raises ModelFormatError for what is no GGUF file."""
    with open(path, "rb") as opened:
        if opened.read(4) != b"GGUF":
            raise ModelFormatError(f"{path.name} is no GGUF file; models are made from GGUF and safetensors files")
    with GGUFFile(path) as file:
        kind, architecture = (file.metadata.get(key) for key in ("general.type", "general.architecture"))
    if adapter or kind == "adapter":
        return "adapter"
    return "projector" if architecture == "clip" or kind == "mmproj" else "model"


def is_part(name: str) -> bool:
    """Whether a file's name is that of one of several parts of a model."""
    found = _PART.search(name)
    return found is not None and int(found[1]) > 1


def joined_layer(store: ModelStore, parts: Sequence[SourceFile], report: Report) -> Layer:
    """The parts of a split model as one GGUF file: a blob's name has no place for a number.

    Raises ModelFormatError where one is missing.
    """
    return _written(store, parts, lambda folder, target: join_model(
        Path(folder, parts[0].name), target,
        progress=lambda done, total: report(TransferProgress("joining parts", "", total, done)),
    ))  # fmt: skip


def _converted(store: ModelStore, files: Sequence[SourceFile], report: Report) -> Layer:
    """The GGUF file of a folder with safetensors."""
    report(TransferProgress("converting model"))

    def progress(done: int, total: int) -> None:
        report(TransferProgress("converting model", "", total, done))

    try:
        return _written(store, files, lambda folder, out: convert_model(folder, out, CONVERTED_TYPE, progress=progress))
    except FileNotFoundError as error:
        name = Path(str(error.filename)).name
        raise ModelFormatError(f"there is no {name} beside the safetensors files; give the whole folder") from None


def _written(store: ModelStore, files: Sequence[SourceFile], write: Callable[[str, Path], object]) -> Layer:
    """The model that `write` makes of a folder, which is put together of links."""
    store.blobs.folder.mkdir(parents=True, exist_ok=True)
    target = store.blobs.folder / f".{os.urandom(8).hex()}{TEMPORARY}"
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            _link(Path(folder), file, store.blobs.path(file.digest) if file.path is None else file.path.absolute())
        try:
            write(folder, target)
            return store.blobs.take(target, "model")
        except EngineError as error:
            raise error.replacing(folder, _home_of(files[0])) from None
        finally:
            target.unlink(missing_ok=True)


def _home_of(file: SourceFile) -> str:
    """The folder that a caller knows a model's files by."""
    return "the model's folder" if file.path is None else str(file.path).removesuffix(f"/{file.name}")


def _link(folder: Path, file: SourceFile, target: Path) -> None:
    """Give a file its name in the folder. Raises ConfigError where another one has it, or no file can."""
    link = folder.joinpath(*PurePosixPath(file.name).parts)
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTDIR, errno.ENAMETOOLONG):
            raise
        raise ConfigError(
            f"a file's name is a path in the model's folder, got {file.name!r:.120}: {error.strerror}"
        ) from None
