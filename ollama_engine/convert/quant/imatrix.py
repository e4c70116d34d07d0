"""Reads importance matrices: how much each input of a matrix matters, measured by llama-imatrix.

Two formats: GGUF with a sum of squares and counts for each tensor, and the older .dat file of plain records.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.gguf.gguf_file import GGUFFile, TensorInfo
from ollama_engine.ml.gguf.metadata import Metadata

__all__ = ["ImportanceMatrix", "read_imatrix"]

SUMS, COUNTS = ".in_sum2", ".counts"


@dataclass(frozen=True)
class ImportanceMatrix:
    """`weights` by tensor name: float32 [experts * row length], experts one after the other."""

    home: str
    weights: Mapping[str, NDArray[np.float32]]
    dataset: str | None
    n_chunks: int

    def of(self, tensor: TensorInfo) -> NDArray[np.float32] | None:
        """Weights [experts, row length] for a tensor, or None where it was not measured.

        Raises ModelFormatError when they are of another model's size.
        """
        importance = self.weights.get(tensor.name)
        if importance is None:
            return None
        n_matrices = tensor.shape[2] if len(tensor.shape) > 2 else 1
        if importance.size != tensor.shape[0] * n_matrices:
            if tensor.name == "token_embd.weight":  # measured as the output of a model that ties the two
                return None
            raise ModelFormatError(
                f"{self.home}: {tensor.name} has {importance.size} weights of importance, expected {tensor.shape[0]} "
                f"for {n_matrices} matrices; the matrix was measured on another model"
            )
        return importance.reshape(n_matrices, tensor.shape[0])


def read_imatrix(path: str | os.PathLike[str]) -> ImportanceMatrix:
    """Either format. Raises OSError when it cannot be opened, ModelFormatError when it is neither, or not finite."""
    with open(path, "rb") as file:
        magic = file.read(4)
        matrix = _read_gguf(path) if magic == b"GGUF" else _read_records(magic + file.read(), os.fsdecode(path))
    for name, weights in matrix.weights.items():
        if not np.isfinite(weights).all():
            raise ModelFormatError(f"{matrix.home}: the importance of {name} is not finite; measure it again")
    return matrix


def _read_gguf(path: str | os.PathLike[str]) -> ImportanceMatrix:
    with GGUFFile(path) as file:
        home = file.path
        metadata = Metadata(file.metadata, "imatrix")
        for key in ("datasets", "chunk_count", "chunk_size"):
            if key not in metadata:
                raise ModelFormatError(f"{home}: imatrix.{key} is missing; is it an importance matrix?")
        weights = {}
        for name in (name.removesuffix(SUMS) for name in file.tensors if name.endswith(SUMS)):
            sums, counts = file.tensors[name + SUMS], file.tensors.get(name + COUNTS)
            if counts is None or (sums.dtype, counts.dtype) != ("f32", "f32"):
                raise ModelFormatError(f"{home}: {name} has no sums and counts as float32")
            weights[name] = _means(_numbers(home, sums), np.rint(_numbers(home, counts)), home, name)
        datasets = metadata.list("datasets")
        return ImportanceMatrix(home, weights, datasets[0] if datasets else None, metadata.u32("chunk_count"))


def _numbers(path: str, tensor: TensorInfo) -> NDArray[np.float32]:
    return np.fromfile(path, "<f4", tensor.nbytes // 4, offset=tensor.offset)


def _means(sums: NDArray[np.float32], counts: NDArray[np.float32], home: str, name: str) -> NDArray[np.float32]:
    """Means of squares, one row for each expert; an expert that was never chosen counts every input alike."""
    if counts.size == 0 or sums.size % counts.size:
        raise ModelFormatError(f"{home}: {name} has {sums.size} sums for {counts.size} counts")
    rows = sums.reshape(counts.size, -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(counts[:, None] > 0, rows / counts[:, None], np.float32(1)).astype(np.float32).reshape(-1)


def _read_records(data: bytes, home: str) -> ImportanceMatrix:
    """count, then (name, calls, values) for each, then optionally chunks and the data set's name."""
    weights: dict[str, NDArray[np.float32]] = {}
    try:
        (count,) = struct.unpack_from("<i", data)
        at = 4
        for _ in range(count):
            name, at = _text(data, at)
            calls, n = struct.unpack_from("<ii", data, at)
            values = np.frombuffer(data, "<f4", _checked(n), at + 8)
            weights[name] = (values / np.float32(max(1, calls))).astype(np.float32)
            at += 8 + 4 * n
        n_chunks = struct.unpack_from("<i", data, at)[0] if at < len(data) else 0
        dataset = _text(data, at + 4)[0] if at + 4 < len(data) else None
    except (struct.error, ValueError):
        raise ModelFormatError(f"{home}: neither a GGUF nor an older importance matrix, or cut off") from None
    if not weights:
        raise ModelFormatError(f"{home}: the importance matrix is empty")
    return ImportanceMatrix(home, weights, dataset or None, n_chunks)


def _text(data: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from("<i", data, at)
    end = at + 4 + _checked(size)
    if end > len(data):
        raise ValueError("cut off")
    return data[at + 4 : end].split(b"\0")[0].decode("utf-8", "surrogateescape"), end


def _checked(n: int) -> int:
    if n < 0:
        raise ValueError("a negative size")
    return n
