"""Pictures to arrays of pixels as the published processors make them: resized, normalized, cut into patches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ollama_engine.input import FloatArray, Int32Array

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["CLIP_MEAN", "CLIP_STD", "normalized", "patches_of_blocks", "unfold"]

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
"""Mean and deviation of each channel of the pictures that CLIP was trained on (Radford et al. 2021)."""


def normalized(image: Image, mean: Sequence[float], std: Sequence[float], *, fused: bool = False) -> FloatArray:
    """An RGB picture as f32 [3, height, width]: (value / 255 - mean) / std.

    Computed in the order and precision of transformers' processors, so that all bits are equal: the quotient in
    float64 and rounded, then both other steps in float32. Processors that compute with torch only multiply mean and
    deviation by 255 instead (`fused`).
    """
    values = np.asarray(image, np.uint8).transpose(2, 0, 1)
    levels = np.arange(256, dtype=np.float32) if fused else (np.arange(256) * (1 / 255)).astype(np.float32)
    shift, spread = (np.asarray(given, np.float32)[:, None] * np.float32(255 if fused else 1) for given in (mean, std))
    # A table of 256 levels for each channel gives what computing each pixel would.
    table = (levels[None] - shift) / spread
    return np.stack([row[channel] for row, channel in zip(table, values, strict=True)])


def unfold(pixels: FloatArray, size: int) -> FloatArray:
    """Squares of `size` pixels, row by row: [channels, height, width] -> f32 [patches, channels * size * size].

    The rest at the right and lower edge is ignored, as by a convolution. A patch has the order of its kernel:
    channel, row, column.
    """
    channels, rows, columns = len(pixels), pixels.shape[1] // size, pixels.shape[2] // size
    whole = pixels[:, : rows * size, : columns * size]
    squares = whole.reshape(channels, rows, size, columns, size)
    return np.ascontiguousarray(squares.transpose(1, 3, 0, 2, 4).reshape(-1, channels * size * size))


def patches_of_blocks(blocks: Int32Array, columns: int, merge: int) -> Int32Array:
    """Row and column of the patches of `blocks`, i32 [2, blocks * merge^2].

    A block is a square of `merge` times `merge` patches, which follow each other row by row. Blocks are numbered row by
    row, `columns` to a row of the image.
    """
    inner = np.arange(merge, dtype=np.int32)
    row = (blocks // columns * merge)[:, None, None] + inner[:, None]
    column = (blocks % columns * merge)[:, None, None] + inner
    return np.stack([np.broadcast_to(n, (len(blocks), merge, merge)).reshape(-1) for n in (row, column)])
