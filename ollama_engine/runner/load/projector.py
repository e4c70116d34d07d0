"""A text model and its vision part, two GGUF files, as one."""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import MutableMapping
from typing import cast

from ollama_engine.errors import ConfigError, ModelFormatError, Option
from ollama_engine.ml.gguf.gguf_file import IMAGE_PARTS, GGUFFile, TensorInfo
from ollama_engine.ml.gguf.metadata import Metadata, MetadataValue
from ollama_engine.models import known_values
from ollama_engine.models.projectors import Projector, find_projector

__all__ = ["JoinedFile", "known_metadata", "with_projector"]


class JoinedFile(GGUFFile):
    """The file of a text model with the tensors and the keys of its projector, which have known names here."""

    def __init__(self, text: GGUFFile, part: GGUFFile, projector: Projector) -> None:
        """Takes both files over: `close` closes them."""
        self.projector = projector
        self.path = text.path
        self.files = (*text.files, *part.files)
        self._parts = [*text._parts, *part._parts]
        added_keys = {key: value for key, value in part.metadata.items() if projector.owns(key)}
        self._metadata = ChainMap(added_keys, cast("MutableMapping[str, MetadataValue]", text.metadata))
        added = _moved(part, projector, len(text.files))
        both = sorted(text.tensors.keys() & added.keys())
        if both:
            raise ModelFormatError(f"{part.path}: tensor {both[0]!r} is in the text model, too; this is no projector")
        self._tensors = {**text.tensors, **added}


def with_projector(text: GGUFFile, path: str | os.PathLike[str]) -> JoinedFile:
    """The model that a text model and the projector at `path` make.

    Raises OSError, ModelFormatError for a file that is no GGUF, ConfigError where the two do not belong together.
    """
    if any(name.startswith(IMAGE_PARTS) for name in text.tensors):
        raise ConfigError(
            Option("projector"),
            " is given, but the model's own file has a part that reads images",
            advice=["leave it out"],
        )
    part = GGUFFile(path)
    try:
        projector = find_projector(known_values(text.metadata).architecture, part.metadata)
        return JoinedFile(text, part, projector)
    except BaseException:
        part.close()
        raise


def known_metadata(gguf: GGUFFile) -> Metadata:
    """The metadata of the model in a file, or in two, as the model reads them."""
    metadata = known_values(gguf.metadata, {name: info.shape for name, info in gguf.tensors.items()})
    if isinstance(gguf, JoinedFile):
        return gguf.projector.metadata(metadata, gguf.metadata)
    return metadata


def _moved(part: GGUFFile, projector: Projector, n_files: int) -> dict[str, TensorInfo]:
    """The tensors of a projector under known names, in the files behind the first `n_files`."""
    names = projector.known_names({name: info.shape for name, info in part.tensors.items()})
    return {
        names[info.name]: info._replace(name=names[info.name], file=info.file + n_files)
        for info in part.tensors.values()
    }
