"""Weights in MXFP4 (OCP MX, 2023) as gpt-oss is published, in the bytes of ggml's type: nothing is rounded.

A checkpoint has `X_blocks`, 16 bytes for 32 numbers with neighbours in one byte, and `X_scales`, an exponent for each
block. ggml puts the exponent first, and number j beside number j + 16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ollama_engine.convert.source.tensors import StoredTensor, describe
from ollama_engine.errors import ModelFormatError

__all__ = ["MXFP4", "PackedTensor", "with_packed"]

MXFP4 = "MXFP4"
NUMBERS = 32
"""Numbers in a block."""


@dataclass(frozen=True)
class PackedTensor:
    """See `tensors.StoredTensor`. `shape` counts numbers; what is read has bytes in its last dimension, 17 a block."""

    blocks: StoredTensor
    scales: StoredTensor

    @property
    def name(self) -> str:
        """`X_packed` for `X_blocks` and `X_scales`."""
        return self.blocks.name.removesuffix("blocks") + "packed"

    @property
    def dtype(self) -> str:
        return MXFP4

    @property
    def shape(self) -> tuple[int, ...]:
        """Numbers: the blocks of a row are side by side."""
        return (*self.scales.shape[:-1], self.scales.shape[-1] * NUMBERS)

    @property
    def home(self) -> str:
        return self.blocks.home

    def read(self, start: int = 0, stop: int | None = None) -> NDArray[np.generic]:
        """Entries of the first dimension as bytes of ggml's blocks."""
        packed = _as_ggml(self.blocks.read(start, stop).view(np.uint8))
        exponents = self.scales.read(start, stop).view(np.uint8)[..., np.newaxis]
        found = np.concatenate([exponents, packed], axis=-1)
        return found.reshape(*found.shape[:-2], -1)


def _as_ggml(neighbours: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[..., 16] bytes that hold numbers 2i and 2i + 1 -> bytes that hold numbers j and j + 16, low half first."""
    numbers = np.stack([neighbours & 0x0F, neighbours >> 4], axis=-1).reshape(*neighbours.shape[:-1], NUMBERS)
    first, second = np.split(numbers, 2, axis=-1)
    return np.asarray(first | (second << 4), np.uint8)


def with_packed(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The tensors with each pair of blocks and scales as one. Raises ModelFormatError for a pair that does not fit."""
    tensors = dict(stored)
    for name, blocks in stored.items():
        scales = stored.get(f"{name.removesuffix('_blocks')}_scales")
        if not name.endswith("_blocks") or scales is None:
            continue
        if blocks.shape != (*scales.shape, NUMBERS // 2) or (blocks.dtype, scales.dtype) != ("U8", "U8"):
            raise ModelFormatError(f"{blocks.home}: {describe(blocks)} and {describe(scales)} are no MXFP4 weights")
        packed = PackedTensor(blocks, scales)
        del tensors[blocks.name], tensors[scales.name]
        tensors[packed.name] = packed
    return tensors
