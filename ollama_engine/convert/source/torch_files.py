"""Reads `pytorch_model.bin`, the pickled checkpoints of before safetensors, with torch where it is installed.

Pickles can run code; torch reads these with `weights_only`, which allows tensors and nothing else.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_engine.convert.source.elements import STORAGE
from ollama_engine.errors import ConfigError, ModelFormatError, UnsupportedModelError

__all__ = ["TorchTensor", "read_torch_file"]

DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8",
    "bool": "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class TorchTensor:
    """See `tensors.StoredTensor`. `values` is a torch.Tensor over the mapped file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    home: str
    values: Any

    def read(self, start: int = 0, stop: int | None = None) -> NDArray[np.generic]:
        """Entries of the first dimension."""
        part = (self.values[start:stop] if self.shape else self.values).contiguous()
        raw: NDArray[np.generic] = part.reshape(-1).view(_torch(self.home).uint8).numpy().view(STORAGE[self.dtype])
        return raw.reshape(tuple(part.shape))


def read_torch_file(path: str) -> dict[str, TorchTensor]:
    """All tensors of a file by name.

    Raises ConfigError when torch is not installed, OSError when the file cannot be opened, ModelFormatError when it is
    no checkpoint or holds more than tensors.
    """
    torch = _torch(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=_is_archive(path))
    except (RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise ModelFormatError(f"{path}: no checkpoint of tensors only: {str(error).splitlines()[0]}") from None
    if not isinstance(state, dict) or not all(isinstance(values, torch.Tensor) for values in state.values()):
        raise ModelFormatError(f"{path}: expected names and tensors, got a {type(state).__name__} of other things")
    return {name: _tensor(path, name, values) for name, values in state.items()}


def _torch(path: str) -> Any:
    try:
        import torch  # noqa: PLC0415 (an extra)
    except ImportError:
        raise ConfigError(
            f"{path}: this older format needs torch: pip install torch, or take the model's safetensors files"
        ) from None
    return torch


def _is_archive(path: str) -> bool:
    """Checkpoints since torch 1.6 are zip archives, which can be mapped."""
    with open(path, "rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _tensor(path: str, name: str, values: Any) -> TorchTensor:
    dtype = str(values.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise UnsupportedModelError(f"{path}: tensor {name!r} has elements of type {dtype}; supported: {list(DTYPES)}")
    return TorchTensor(name, DTYPES[dtype], tuple(values.shape), path, values.detach())
