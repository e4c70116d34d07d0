"""Quantizes a GGUF file: copies its metadata, decides the types, and streams the tensors through ggml."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ollama_engine.convert.gguf_writing import OutTensor, Progress, data_size, write_model
from ollama_engine.convert.late_warnings import warnings_last
from ollama_engine.convert.quant.imatrix import ImportanceMatrix, read_imatrix
from ollama_engine.convert.quant.layout import FLOATS, in_file_order, read_facts, target_types
from ollama_engine.convert.quant.presets import ALIASES, PRESETS, Preset
from ollama_engine.convert.raw_metadata import copy_metadata
from ollama_engine.convert.workers import Job, Workers
from ollama_engine.errors import ConfigError, ModelFormatError, Option
from ollama_engine.ml.gguf.gguf_file import GGUFFile, TensorInfo
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.types import block_of
from ollama_engine.ml.weights.quantize import are_valid, dequantize_rows, quantize_rows
from ollama_engine.new_file import FileSizes, check_target, write_new_file

__all__ = ["find_preset", "quantize_model"]

logger = logging.getLogger(__name__)

PIECE = 1 << 19
"""Elements that a thread takes at once: as float32 they stay in its cache."""
SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")
QUANTIZATION_VERSION = 2


def find_preset(name: str) -> Preset:
    """The preset of a name in any case. Raises ConfigError that lists them."""
    key = name.upper()
    found = PRESETS.get(ALIASES.get(key, key))
    if found is None:
        raise ConfigError(Option("preset"), f" is one of {', '.join([*PRESETS, *ALIASES])}, got {name!r}")
    return found


def quantize_model(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    preset: str,
    *,
    threads: int | None = None,
    imatrix: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> FileSizes:
    """Write a GGUF file again with smaller weights; a split model becomes one file. Returns the sizes of both.

    `preset` is one of `presets.PRESETS`, `imatrix` an importance matrix, `threads` all cores if None. `overwrite`:
    whether a file of the target's name is replaced. `progress` is
    called with (bytes written, bytes in all). The tensors are those that llama-quantize makes, bit by bit.

    Raises ConfigError for an unknown preset, weights that are quantized already, or a missing importance matrix that
    the preset cannot do without; ModelFormatError for broken files and weights that are not finite; and OSError as
    `convert_model` does.
    """
    chosen = find_preset(preset)
    check_target(target, 0, overwrite=overwrite)
    workers = Workers(threads)
    matrix = None if imatrix is None else read_imatrix(imatrix)
    with warnings_last(), GGUFFile(source) as file:
        tensors = in_file_order(file.tensors.values())
        facts = read_facts(Metadata(file.metadata))
        types = target_types(tensors, chosen, facts, has_imatrix=matrix is not None)
        changes = [_change(tensor, types[tensor.name], file.files[tensor.file], chosen, matrix) for tensor in tensors]
        metadata = copy_metadata(file.files[0], _new_keys(chosen, matrix), SPLIT_KEYS)
        sources = file.files
        out = [OutTensor(change.tensor.name, _significant(change.tensor.shape), change.dtype) for change in changes]
        size = len(metadata.data) + data_size(out)
        check_target(target, size, overwrite=overwrite)

    def write(file: BinaryIO) -> None:
        with workers:
            write_model(file, metadata, out, workers.results(_pieces(changes)), progress)

    write_new_file(target, size, write, overwrite=overwrite)
    return FileSizes.of(sources, target)


def _significant(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without ones at its end, which ggml does not write."""
    n = max((i + 1 for i, size in enumerate(shape) if size != 1), default=1)
    return shape[:n]


def _new_keys(preset: Preset, matrix: ImportanceMatrix | None) -> dict[str, int | str]:
    keys: dict[str, int | str] = {
        "general.quantization_version": QUANTIZATION_VERSION,
        "general.file_type": preset.file_type,
    }
    if matrix is not None:
        keys["quantize.imatrix.file"] = matrix.home
        if matrix.dataset is not None:
            keys["quantize.imatrix.dataset"] = matrix.dataset
        keys["quantize.imatrix.entries_count"] = len(matrix.weights)
        if matrix.n_chunks > 0:
            keys["quantize.imatrix.chunks_count"] = matrix.n_chunks
    return keys


@dataclass(frozen=True)
class _Change:
    """One tensor: where it lies in `home`, and what it becomes. `importance` is [matrices, row length]."""

    tensor: TensorInfo
    home: str
    dtype: str
    importance: NDArray[np.float32] | None


def _change(tensor: TensorInfo, dtype: str, home: str, preset: Preset, matrix: ImportanceMatrix | None) -> _Change:
    if dtype == tensor.dtype:
        return _Change(tensor, home, dtype, None)
    if tensor.dtype not in FLOATS:
        raise ConfigError(
            f"{home}: {tensor.name} is {tensor.dtype} already; rounding twice loses more than once, so quantize from a "
            "file with f32, f16 or bf16 weights"
        )
    importance = None if matrix is None else matrix.of(tensor)
    if importance is None and preset.name == "Q2_K_S" and dtype == "q2_K" and not _is_edge(tensor.name):
        raise ConfigError(
            f"Q2_K_S needs an importance matrix, and {tensor.name} has none",
            advice=[("give one by ", Option("imatrix"))],
        )
    return _Change(tensor, home, dtype, importance)


def _is_edge(name: str) -> bool:
    return name in ("token_embd.weight", "per_layer_token_embd.weight", "output.weight")


# -- the data ----------------------------------------------------------------------------------------------------------


def _pieces(changes: Iterable[_Change]) -> Iterator[Job[NDArray[np.uint8]]]:
    """Rows of one matrix each, since every expert has an importance of its own."""
    for change in changes:
        shape = change.tensor.shape
        n_rows = shape[1] if len(shape) > 1 else 1
        step = max(1, PIECE // shape[0])
        for matrix in range(prod(shape[2:])):
            for start in range(0, n_rows, step):
                n = min(step, n_rows - start)
                yield Job(partial(_piece, change, matrix, start, n), n * shape[0])


def _piece(change: _Change, matrix: int, start: int, n: int) -> NDArray[np.uint8]:
    tensor = change.tensor
    length, n_rows = tensor.shape[0], tensor.shape[1] if len(tensor.shape) > 1 else 1
    row_bytes = _row_bytes(tensor.dtype, length)
    with open(change.home, "rb") as file:
        data = os.pread(file.fileno(), n * row_bytes, tensor.offset + (matrix * n_rows + start) * row_bytes)
    if len(data) < n * row_bytes:
        raise ModelFormatError(f"{change.home}: the file ends inside of {tensor.name}; is it still being written?")
    raw = np.frombuffer(data, np.uint8)
    _check(change, tensor.dtype, raw)
    if change.dtype == tensor.dtype:
        return raw
    values = _floats(raw, tensor.dtype, n * length)
    out = np.empty(n * _row_bytes(change.dtype, length), np.uint8)
    importance = None if change.importance is None else change.importance[matrix]
    quantize_rows(change.dtype, values.reshape(n, length), out, importance)
    _check(change, change.dtype, out)
    return out


def _check(change: _Change, dtype: str, data: NDArray[np.uint8]) -> None:
    if not are_valid(dtype, data):
        raise ModelFormatError(f"{change.home}: {change.tensor.name} holds numbers that are not finite, as {dtype}")


def _row_bytes(dtype: str, length: int) -> int:
    block, size = block_of(dtype)
    return length // block * size


def _floats(raw: NDArray[np.uint8], dtype: str, n: int) -> NDArray[np.float32]:
    if dtype == "f32":
        return raw.view(np.float32)
    values = np.empty(n, np.float32)
    dequantize_rows(dtype, raw, values)
    return values
