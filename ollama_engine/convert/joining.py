"""Joins the parts of a split GGUF file to one file: the metadata of the first, the tensors of all, byte by byte."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ollama_engine.convert.gguf_writing import OutTensor, Progress, data_size, write_model
from ollama_engine.convert.raw_metadata import copy_metadata
from ollama_engine.ml.gguf.gguf_file import GGUFFile, TensorInfo
from ollama_engine.new_file import FileSizes, write_new_file

__all__ = ["join_model"]

DROPPED_KEYS = ("split.no", "split.count", "split.tensors.count", "general.alignment")
"""The last, because tensors are written at GGUF's default alignment."""
READ_BYTES = 8 << 20


def join_model(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, progress: Progress | None = None
) -> FileSizes:
    """Write one file with what all parts of a split model hold; `source` is any of them. Returns the sizes.

    `progress` is called with (bytes written, bytes in all). Raises what GGUFFile and `write_new_file` do.
    """
    with GGUFFile(source) as file:
        sources, tensors = file.files, list(file.tensors.values())
    metadata = copy_metadata(sources[0], {}, DROPPED_KEYS)
    out = [OutTensor(tensor.name, tensor.shape, tensor.dtype) for tensor in tensors]

    def write(file: BinaryIO) -> None:
        write_model(file, metadata, out, _pieces(sources, tensors), progress)

    write_new_file(target, len(metadata.data) + data_size(out), write)
    return FileSizes.of(sources, target)


def _pieces(sources: tuple[str, ...], tensors: list[TensorInfo]) -> Iterator[NDArray[np.uint8]]:
    """The bytes of all tensors, in order. Raises OSError where a part became shorter."""
    for tensor in tensors:
        with open(sources[tensor.file], "rb", buffering=0) as part:
            part.seek(tensor.offset)
            left = tensor.nbytes
            while left:
                data = part.read(min(left, READ_BYTES))
                if not data:
                    raise OSError(f"{sources[tensor.file]} became shorter while it was read")
                left -= len(data)
                yield np.frombuffer(data, np.uint8)
