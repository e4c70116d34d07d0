"""Makes the metadata of a converted file, in the words and types of llama.cpp's converter.

The gguf package knows how each value is encoded, and how a model's name, size and licence are found in its folder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ollama_engine.convert.architecture import Architecture, Sizes
from ollama_engine.convert.gguf_writing import EncodedMetadata
from ollama_engine.convert.keys import read_keys
from ollama_engine.convert.outtype import FILE_TYPES
from ollama_engine.convert.plan import PlannedTensor
from ollama_engine.convert.source.elements import to_float32
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.source.tensors import StoredTensor
from ollama_engine.errors import ConfigError, ModelFormatError

__all__ = ["add_model", "add_value", "encode", "model_keys", "new_writer", "told_numbers"]

QUANTIZATION_VERSION = 2
WITHOUT_PREFIX = ("tokenizer.", "xielu.")
"""Beginnings of keys before which the architecture's name does not stand."""


def new_writer(architecture: str) -> Any:
    """A GGUFWriter without a file; its general.architecture is set.

    Raises ConfigError when the gguf package is not installed.
    """
    return _gguf().GGUFWriter(None, architecture)


def encode(writer: Any) -> EncodedMetadata:
    """The bytes of all that was added to a GGUFWriter. It can write to files only, so a temporary one it is."""
    with tempfile.TemporaryDirectory(prefix="ollama-engine-") as folder:
        path = Path(folder) / "metadata.gguf"
        writer.write_header_to_file(path=path)
        writer.write_kv_data_to_file()
        writer.close()
        data = path.read_bytes()
    # Magic and version, number of tensors, number of keys; then the keys.
    return EncodedMetadata(int.from_bytes(data[16:24], "little"), data[24:])


def add_model(
    writer: Any,
    folder: Path,
    architecture: Architecture,
    keys: Mapping[str, Any],
    outtype: str,
    planned: Sequence[PlannedTensor],
) -> None:
    """Add everything but the tokenizer: what `general.` says, and `keys` below the architecture's name.

    Those that begin as WITHOUT_PREFIX says stay as they are.
    """
    gguf = _gguf()
    for tensor in planned:  # for the number of parameters
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), 0)
    total, *counts = writer.get_total_parameter_count()
    general = gguf.Metadata.load(None, folder, None, total)
    general.name = general.name or folder.resolve().name
    if general.size_label is None and total:
        general.size_label = gguf.size_label(total, *counts)
    writer.add_type("model")
    general.set_gguf_meta_model(writer)
    for name, value in keys.items():
        add_value(writer, name if name.startswith(WITHOUT_PREFIX) else f"{architecture.name}.{name}", value)
    writer.add_file_type(FILE_TYPES[outtype])
    writer.add_quantization_version(QUANTIZATION_VERSION)


def _gguf() -> Any:
    try:
        import gguf  # noqa: PLC0415 (an extra)
    except ImportError:
        raise ConfigError("conversion needs the gguf package: pip install gguf") from None
    return gguf


def model_keys(architecture: Architecture, config: Config, sizes: Sizes) -> dict[str, Any]:
    """The keys below the architecture's name.

    Raises ModelFormatError for a config.json that lacks a required value or has one of another kind.
    """
    return {**read_keys(architecture.keys, config), **architecture.more_keys(config, sizes)}


def told_numbers(architecture: Architecture, sizes: Sizes, stored: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """The keys that are a list of numbers, one for each layer. Raises ModelFormatError where one is missing."""

    def number(name: str) -> float:
        tensor = stored.get(name)
        if tensor is None or prod(tensor.shape) != 1:
            found = "is missing" if tensor is None else f"has shape {list(tensor.shape)}"
            raise ModelFormatError(f"tensor {name} {found}; {architecture.name} has one number there")
        return float(to_float32(tensor.read(), tensor.dtype).reshape(()))

    layers = range(sizes["n_layer"])
    return {
        key: [number(source.replace("{i}", str(i))) for i in layers] for key, source in architecture.numbers.items()
    }


def add_value(writer: Any, key: str, value: Any) -> None:
    """Whole numbers become u32, fractions f32."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
