"""A model that answers almost like another one, and takes longer: for the two as a pair of draft model and target.

Random weights cannot accept guesses, so a pair has to be trained, or made like this: behind each layer stand copies of
it whose results are scaled down, so that they are computed and change little.
"""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np

from tests.support.gguf_files import write_and_close

__all__ = ["write_deeper"]

SCALED = ("attn_output.weight", "ffn_down.weight")
"""The last products of a block's two halves, which add to the stream."""


def write_deeper(source: str | os.PathLike[str], path: Path, copies: int, scale: float) -> str:
    """Write the model `source` with so many scaled `copies` behind each layer; returns the new path."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(os.fspath(path), architecture)
    n_layers = f"{architecture}.block_count"
    for name, entry in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            value = entry.contents() * (copies + 1) if name == n_layers else entry.contents()
            writer.add_key_value(name, value, entry.types[0], entry.types[-1])
    for tensor in reader.tensors:
        if not tensor.name.startswith("blk."):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        _, layer, part = tensor.name.split(".", 2)
        for copy in range(copies + 1):
            data = scaled(tensor, scale) if copy and part in SCALED else tensor.data
            writer.add_tensor(f"blk.{int(layer) * (copies + 1) + copy}.{part}", data, raw_dtype=tensor.tensor_type)
    write_and_close(writer)
    return os.fspath(path)


def scaled(tensor: gguf.ReaderTensor, scale: float) -> np.ndarray:
    """The data of a tensor times a number, in its type."""
    floats = gguf.quants.dequantize(tensor.data, tensor.tensor_type) * np.float32(scale)
    return gguf.quants.quantize(floats, tensor.tensor_type)
