"""Pictures to arrays of pixels as the published processors make them: resized, normalized, cut into patches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ollama_engine.input import FloatArray

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["normalized", "unfold"]


def normalized(image: Image, mean: Sequence[float], std: Sequence[float]) -> FloatArray:
    """An RGB picture as f32 [3, height, width]: (value / 255 - mean) / std.

    Computed in the order and precision of transformers' processors, so that all bits are equal: the quotient in
    float64 and rounded, then both other steps in float32.
    """
    values = np.asarray(image, np.uint8).transpose(2, 0, 1)
    levels = (np.arange(256) * (1 / 255)).astype(np.float32)
    # A table of 256 levels for each channel gives what computing each pixel would.
    table = (levels[None] - np.asarray(mean, np.float32)[:, None]) / np.asarray(std, np.float32)[:, None]
    return np.stack([row[channel] for row, channel in zip(table, values, strict=True)])


def unfold(pixels: FloatArray, size: int) -> FloatArray:
    """Squares of `size` pixels, row by row: [channels, height, width] -> f32 [patches, channels * size * size].

    `size` divides height and width. A patch has the order of a convolution's kernel: channel, row, column.
    """
    channels, height, width = pixels.shape
    squares = pixels.reshape(channels, height // size, size, width // size, size)
    return np.ascontiguousarray(squares.transpose(1, 3, 0, 2, 4).reshape(-1, channels * size * size))
