"""Reads `.safetensors` files: a header in JSON, then the bytes of the tensors.

Format: the documentation of the safetensors package. Everything that the header says is checked against the file
before a tensor is read, and only what is asked for is read: nothing is mapped, so that the memory in use is what was
asked for.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_engine.convert.source.elements import STORAGE
from ollama_engine.convert.source.tensors import rows_of
from ollama_engine.errors import ModelFormatError, UnsupportedModelError

__all__ = ["SafeTensor", "read_safetensors"]

MAX_HEADER = 100_000_000
"""As in the reference implementation."""


@dataclass(frozen=True)
class SafeTensor:
    """One tensor of a file; see `tensors.StoredTensor`. `offset` counts from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    home: str
    offset: int

    def read(self, start: int = 0, stop: int | None = None) -> NDArray[np.generic]:
        """Entries of the first dimension."""
        n, width = rows_of(self.shape)
        start, stop, _ = slice(start, stop).indices(n)
        storage = STORAGE[self.dtype]
        values = np.empty((stop - start) * width, storage)
        with open(self.home, "rb", buffering=0) as file:
            file.seek(self.offset + start * width * storage.itemsize)
            _fill(file, values.view(np.uint8).data, self)
        return values.reshape((stop - start, *self.shape[1:]) if self.shape else ())


def _fill(file: Any, room: memoryview, tensor: SafeTensor) -> None:
    """One call reads at most 2 GiB on Linux."""
    at = 0
    while at < len(room):
        n = file.readinto(room[at:])
        if not n:
            raise ModelFormatError(f"{tensor.home}: the file ends inside of tensor {tensor.name}; is it still written?")
        at += n


def read_safetensors(path: str) -> dict[str, SafeTensor]:
    """All tensors of a file by name.

    Raises OSError when it cannot be opened, ModelFormatError when it is not what the format says, and
    UnsupportedModelError for an element type that is unknown here.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER):
            raise ModelFormatError(f"{path}: not a safetensors file, or truncated: {size} bytes, a header of {length}")
        text = file.read(length)
    try:
        header = json.loads(text)
    except ValueError as error:
        raise ModelFormatError(f"{path}: the header is not JSON ({error}); download the file again") from None
    if not isinstance(header, dict):
        raise ModelFormatError(f"{path}: the header is a JSON {type(header).__name__}, expected an object")
    header.pop("__metadata__", None)
    return {name: _tensor(path, name, fields, 8 + length, size) for name, fields in header.items()}


def _tensor(path: str, name: str, fields: Any, data: int, size: int) -> SafeTensor:
    """One entry of the header; `data` is where the bytes of the tensors start."""
    try:
        dtype, shape, (start, stop) = fields["dtype"], tuple(fields["shape"]), fields["data_offsets"]
        sound = all(type(n) is int and n >= 0 for n in (*shape, start, stop)) and isinstance(dtype, str)
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise ModelFormatError(f"{path}: tensor {name!r} has a broken header entry: {fields!r:.200}")
    dtype = dtype.removesuffix("FN")
    if dtype not in STORAGE:
        known = ", ".join(STORAGE)
        raise UnsupportedModelError(f"{path}: tensor {name!r} has elements of type {dtype!r}; supported: {known}")
    expected = prod(shape) * STORAGE[dtype].itemsize
    if stop - start != expected or data + stop > size:
        raise ModelFormatError(
            f"{path}: tensor {name!r} {dtype} {list(shape)} takes {expected} bytes, but the header gives it {start} to "
            f"{stop} of {size - data} bytes; the file is truncated or corrupted, download it again"
        )
    return SafeTensor(name, dtype, shape, path, data + start)
