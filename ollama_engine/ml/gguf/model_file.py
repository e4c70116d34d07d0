"""ModelFile: one file of a model while its tensors are loaded."""

from __future__ import annotations

import mmap

import numpy as np

from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.gguf.gguf_file import TensorInfo
from ollama_engine.ml.gguf.mapped_files import MappedFiles

__all__ = ["ModelFile"]

CHUNK = 64 << 20
"""Bytes that are read at once: a signal's handler runs between two reads."""


class ModelFile:
    """One file of the model: mapped when asked, read otherwise."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = open(path, "rb")  # noqa: SIM115 (closed by close())
        self._mapping: mmap.mmap | None = None

    def mapping(self) -> mmap.mmap:
        if self._mapping is None:
            self._mapping = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._mapping

    def watch(self, files: MappedFiles) -> None:
        """Have changes of the file noticed."""
        files.add(self._path, self._file.fileno())

    def fileno(self) -> int:
        return self._file.fileno()

    def read(self, info: TensorInfo) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        if self._mapping is not None:
            return np.frombuffer(self._mapping, dtype=np.uint8, count=info.nbytes, offset=info.offset)
        out = np.empty(info.nbytes, dtype=np.uint8)
        view = out.data
        self._file.seek(info.offset)
        done = 0
        while done < info.nbytes:
            got = self._file.readinto(view[done : done + CHUNK])
            if not got:
                raise ModelFormatError(f"{info.name}: the file ended while it was read")
            done += got
        return out

    def close(self) -> None:
        """Close the file; a mapping lives on in the storages that use it."""
        self._file.close()
