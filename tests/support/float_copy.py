"""A model file's copy with weights of float32, so that answers depend on no rounding of activations."""

from __future__ import annotations

import os

import gguf
import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from tests.support.gguf_files import write_and_close

__all__ = ["write_float_copy"]


def write_float_copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Write the model of `source` with the same values, all as float32."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in ("general.architecture", "general.file_type"):
            kind = field.types[0]
            sub = field.types[-1] if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, sub)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    write_and_close(writer)
