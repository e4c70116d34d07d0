"""Weights in 8-bit floats with scales beside them, as one tensor of float32.

The scale is one number, one for each row, or one for each block of rows and columns; its name is that of the weight
with `_scale_inv` (DeepSeek's files) or `_scale` (compressed-tensors). Both are factors of the weight.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ollama_engine.convert.source.elements import to_float32
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.source.tensors import StoredTensor, describe, rows_of
from ollama_engine.errors import ModelFormatError, UnsupportedModelError

__all__ = ["ScaledTensor", "check_quantization", "with_scales"]

logger = logging.getLogger(__name__)

SUFFIXES = ("_scale_inv", "_scale")
ACTIVATION_SCALES = (".input_scale", ".activation_scale", ".output_scale", ".k_scale", ".v_scale", ".q_scale")
"""Scales of products in 8 bits, which GGUF's types do not use."""
METHODS = ("fp8", "fbgemm_fp8", "compressed-tensors", "mxfp4")
DEFAULT_BLOCK = 128


@dataclass(frozen=True)
class ScaledTensor:
    """See `tensors.StoredTensor`. `blocks` says how many entries of each dimension share a scale."""

    weight: StoredTensor
    scale: StoredTensor
    blocks: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.weight.name

    @property
    def dtype(self) -> str:
        return "F32"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weight.shape

    @property
    def home(self) -> str:
        return self.weight.home

    def read(self, start: int = 0, stop: int | None = None) -> NDArray[np.generic]:
        """Entries of the first dimension, multiplied."""
        start, stop, _ = slice(start, stop).indices(rows_of(self.shape)[0])
        values = to_float32(self.weight.read(start, stop), self.weight.dtype)
        scale = to_float32(self.scale.read(), self.scale.dtype).reshape(-1)
        if scale.size == 1:
            values *= scale[0]
            return values
        ends = [(start, stop), *((0, n) for n in self.shape[1:])]
        places = [np.arange(first, last) // block for (first, last), block in zip(ends, self.blocks, strict=True)]
        grid = scale.reshape([-(-n // block) for n, block in zip(self.shape, self.blocks, strict=True)])
        values *= grid[np.ix_(*places)]
        return values


def check_quantization(config: Config) -> None:
    """Raises UnsupportedModelError for weights in a form that is not read here (packed whole numbers)."""
    method = config.mapping("quantization_config").get("quant_method")
    if method is not None and method not in METHODS:
        raise UnsupportedModelError(
            f"{config.home}: the weights are quantized by {method}, which is not read here; read are "
            f"{', '.join(METHODS)}; convert the original weights"
        )


def with_scales(stored: Mapping[str, StoredTensor], config: Config) -> dict[str, StoredTensor]:
    """The tensors with scales multiplied into those they belong to.

    Raises ModelFormatError for a scale whose shape does not divide its weight.
    """
    tensors = {name: tensor for name, tensor in stored.items() if not name.endswith(ACTIVATION_SCALES)}
    if len(tensors) < len(stored):
        logger.info("%d scales of activations are left out; GGUF has no use for them", len(stored) - len(tensors))
    sizes = config.mapping("quantization_config").get("weight_block_size") or (DEFAULT_BLOCK, DEFAULT_BLOCK)
    for name, tensor in list(tensors.items()):
        scale = next((tensors[name + s] for s in SUFFIXES if name + s in tensors), None)
        if tensor.dtype.startswith("F8_E") and scale is not None:
            tensors[name] = ScaledTensor(tensor, scale, _blocks(tensor, scale, sizes))
            del tensors[scale.name]
    return tensors


def _blocks(tensor: StoredTensor, scale: StoredTensor, sizes: Sequence[int]) -> tuple[int, ...]:
    """How many entries of each dimension share a scale; `sizes` are those of a block of rows and columns."""
    if np.prod(scale.shape) == 1:
        return tensor.shape
    grid = (*scale.shape, *[1] * (len(tensor.shape) - len(scale.shape)))
    expected = (*[1] * (len(tensor.shape) - len(sizes)), *sizes)[-len(tensor.shape) :]
    if len(grid) == len(tensor.shape):
        choices = [(n, 1, block) for n, block in zip(tensor.shape, expected, strict=True)]
        fitting = [
            next((block for block in blocks if -(-n // block) == m), None)
            for n, m, blocks in zip(tensor.shape, grid, choices, strict=True)
        ]
        chosen = tuple(block for block in fitting if block is not None)
        if len(chosen) == len(fitting):
            return chosen
    raise ModelFormatError(
        f"{scale.home}: {describe(scale)} is no scale for {describe(tensor)} in blocks of {list(sizes)}"
    )
