"""Finds all tensors of a model's folder, over all files it is split into."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ollama_engine.convert.source.folder import ModelFolder
from ollama_engine.convert.source.safetensors import read_safetensors
from ollama_engine.convert.source.tensors import StoredTensor
from ollama_engine.convert.source.torch_files import read_torch_file
from ollama_engine.errors import ModelFormatError

__all__ = ["open_checkpoint"]

Reader = Callable[[str], Mapping[str, StoredTensor]]

KINDS: tuple[tuple[str, str, Reader], ...] = (
    ("model.safetensors.index.json", "*.safetensors", read_safetensors),
    ("pytorch_model.bin.index.json", "pytorch_model*.bin", read_torch_file),
)
"""(index of a split checkpoint, names of the files, how to read one); the first kind that is there counts."""


def open_checkpoint(folder: ModelFolder) -> dict[str, StoredTensor]:
    """Tensors by their names in the checkpoint; only headers are read.

    Raises ModelFormatError when a file of a split checkpoint is missing, or its index names tensors that are nowhere.
    """
    for index_name, pattern, read in KINDS:
        index = folder.json(index_name)
        if index is not None:
            return _indexed(folder.path, index_name, index, read)
        files = sorted(file.name for file in folder.path.glob(pattern))
        # Some folders hold the weights a second time, in the layout of their authors.
        files = [name for name in files if name.startswith("model")] or files
        if files:
            return _merged({name: read(str(folder.path / name)) for name in files}, folder.path)
    raise ModelFormatError(f"{folder.path}: no weights: neither .safetensors files nor pytorch_model.bin")


def _indexed(path: Path, index_name: str, index: Mapping[str, object], read: Reader) -> dict[str, StoredTensor]:
    places = index.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise ModelFormatError(f"{path / index_name}: weight_map does not give a file name for each tensor")
    names = sorted(set(places.values()))
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise ModelFormatError(f"{path / index_name}: {outside[0]!r} is no plain file name")
    missing = [name for name in names if not (path / name).is_file()]
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise ModelFormatError(f"{path}: of {len(names)} files that {index_name} names, these are missing: {shown}")
    tensors = _merged({name: read(str(path / name)) for name in names}, path)
    lost = [name for name in places if name not in tensors]
    if lost:
        raise ModelFormatError(
            f"{path}: {places[lost[0]]} lacks {lost[0]}, which {index_name} places there ({len(lost)} tensors are "
            "lost); download the files again"
        )
    return tensors


def _merged(files: Mapping[str, Mapping[str, StoredTensor]], path: Path) -> dict[str, StoredTensor]:
    merged: dict[str, StoredTensor] = {}
    for tensors in files.values():
        for name, tensor in tensors.items():
            other = merged.setdefault(name, tensor)
            if other is not tensor:
                raise ModelFormatError(
                    f"{path}: tensor {name!r} is in {Path(other.home).name} and in {Path(tensor.home).name}; "
                    "the files do not belong together"
                )
    return merged
