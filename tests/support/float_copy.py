"""A model file's copy with weights of float32, so that answers depend on no rounding of activations."""

from __future__ import annotations

import os

import gguf
import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

__all__ = ["write_float_copy"]


def write_float_copy(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Write the model of `source` with the same values, all as float32."""
    reader = GGUFReader(source)
    writer = GGUFWriter(target, str(reader.fields["general.architecture"].contents()))
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        if field.types[0] == GGUFValueType.ARRAY:
            writer.add_array(field.name, field.contents())
        else:
            writer.add_key_value(field.name, field.contents(), field.types[0])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
