"""Finds all tensors of a model's folder, over all files it is split into."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ollama_engine.convert.source.folder import ModelFolder
from ollama_engine.convert.source.safetensors import read_safetensors
from ollama_engine.convert.source.tensors import StoredTensor
from ollama_engine.errors import ModelFormatError

__all__ = ["open_checkpoint"]

INDEX = "model.safetensors.index.json"


def open_checkpoint(folder: ModelFolder) -> dict[str, StoredTensor]:
    """Tensors by their names in the checkpoint; only headers are read.

    Raises ModelFormatError when a file of a split checkpoint is missing, or its index names tensors that are nowhere.
    """
    index = folder.json(INDEX)
    if index is not None:
        return _indexed(folder.path, index)
    files = sorted(folder.path.glob("model*.safetensors")) or sorted(folder.path.glob("*.safetensors"))
    if not files:
        raise ModelFormatError(f"{folder.path}: no .safetensors file and no {INDEX}; there are no weights to convert")
    return _merged({file.name: read_safetensors(str(file)) for file in files}, folder.path)


def _indexed(path: Path, index: Mapping[str, object]) -> dict[str, StoredTensor]:
    places = index.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise ModelFormatError(f"{path / INDEX}: weight_map does not give a file name for each tensor")
    names = sorted(set(places.values()))
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise ModelFormatError(f"{path / INDEX}: {outside[0]!r} is no plain file name")
    missing = [name for name in names if not (path / name).is_file()]
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise ModelFormatError(f"{path}: of {len(names)} files that {INDEX} names, these are missing: {shown}")
    found = _merged({name: read_safetensors(str(path / name)) for name in names}, path)
    lost = [name for name in places if name not in found]
    if lost:
        raise ModelFormatError(
            f"{path}: {places[lost[0]]} lacks {lost[0]}, which {INDEX} places there ({len(lost)} tensors are lost); "
            "download the files again"
        )
    return found


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
