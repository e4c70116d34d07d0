"""Pictures for Llama 4, as transformers' Llama4ImageProcessor makes them: tiles of one size, and the whole picture.

A canvas of 1 to 16 tiles is chosen whose shape suits the picture; the picture is resized without distortion, the rest
of the canvas is black. Where the canvas has several tiles, one more shows the whole picture, distorted to a square.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from ollama_engine.input import FloatArray, PreparedImage
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.llama4.vision import VisionOptions
from ollama_engine.multimodal.image import on_white
from ollama_engine.multimodal.pixels import unfold
from ollama_engine.multimodal.resampling import BILINEAR
from ollama_engine.nn.vision import read_normalization

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_TILES = 16
"""Most tiles of a canvas (`max_patches` of the published processor, which no file has a key for)."""

Number = float | np.float32


class Preprocessor:
    """Array `tiles`, f32 [tiles, patches, 3 * patch_size^2]: row by row, then the whole. Grid: (rows, columns)."""

    def __init__(self, metadata: Metadata, options: VisionOptions) -> None:
        self.options = options
        mean, std = read_normalization(metadata, [0.5] * 3, [0.5] * 3)
        self._levels = normalized_levels(mean, std)

    def prepare(self, image: Image) -> PreparedImage:
        """A picture of any size, RGB or RGBA; transparent pixels become white."""
        image, side = on_white(image), self.options.image_size
        rows, columns = best_canvas(image.height, image.width, side)
        height, width = fitted_size(image.height, image.width, (rows * side, columns * side), side)
        pictures = _tiles(image.resize((width, height), BILINEAR), rows, columns, side)
        if rows * columns > 1:
            pictures.append(image.resize((side, side), BILINEAR))
        return self._prepared(np.stack([self._patches(picture) for picture in pictures]), rows, columns)

    def largest(self) -> PreparedImage:
        """A canvas of MAX_TILES."""
        o = self.options
        return self._prepared(np.zeros((MAX_TILES + 1, o.n_patches, o.n_pixels), np.float32), 1, MAX_TILES)

    def _patches(self, tile: Image) -> FloatArray:
        channels = np.asarray(tile, np.uint8).transpose(2, 0, 1)
        pixels = np.stack([table[values] for table, values in zip(self._levels, channels, strict=True)])
        return unfold(pixels, self.options.patch_size)

    def _prepared(self, tiles: FloatArray, rows: int, columns: int) -> PreparedImage:
        return PreparedImage({"tiles": tiles}, n_inputs=len(tiles) * self.options.n_tokens, grid=(rows, columns))


def normalized_levels(mean: list[float], std: list[float]) -> FloatArray:
    """(value / 255 - mean) / std for each of 256 levels, f32 [3, 256].

    Each step is rounded to bfloat16, as in the published processor, so that all bits are equal.
    """
    levels = _bf16(np.arange(256, dtype=np.float32) * np.float32(1 / 255))
    shift, spread = (_bf16(np.asarray(values, np.float32))[:, None] for values in (mean, std))
    return _bf16(_bf16(levels[None] - shift) / spread)


def _bf16(x: FloatArray) -> FloatArray:
    """Round to the nearest number with 8 significant bits, to even in the middle."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


@cache
def canvases() -> tuple[tuple[int, int], ...]:
    """(rows, columns) of every canvas, in the order in which the published processor lists them: by shape."""
    shapes: dict[float, list[tuple[int, int]]] = {}
    for n in range(MAX_TILES, 0, -1):
        for rows in (r for r in range(1, n + 1) if n % r == 0):
            shapes.setdefault(rows / (n // rows), []).append((rows, n // rows))
    return tuple(canvas for of_shape in shapes.values() for canvas in of_shape)


def best_canvas(height: int, width: int, side: int) -> tuple[int, int]:
    """(rows, columns) of tiles for a picture: that which it must be enlarged least for, else shrunk least.

    Of those for which it is resized alike, the one with the fewest tiles.
    """
    grid = np.array(canvases())
    scales = (grid * side).astype(np.float32) / np.array([height, width], np.float32)
    scale = scales.min(axis=1)
    chosen = scale[scale >= 1].min() if (scale >= 1).any() else scale.max()
    alike = grid[scale == chosen]
    rows, columns = alike[alike.prod(axis=1).argmin()].tolist()
    return rows, columns


def fitted_size(height: int, width: int, canvas: tuple[int, int], side: int) -> tuple[int, int]:
    """(height, width) of a picture on its canvas, both in pixels: not distorted, at least 1.

    A picture smaller than a tile grows to one at most, whatever the canvas.
    """
    limits = [min(max(size, side), room) for size, room in zip((height, width), canvas, strict=True)]
    by_height, by_width = (
        _quotient(limit, size, rounded=room < max(size, side))
        for limit, size, room in zip(limits, (height, width), canvas, strict=True)
    )
    kind = float if type(by_height) is type(by_width) is float else np.float32
    if kind(by_width) < kind(by_height):
        return max(1, min(_product(height, by_width), limits[0])), limits[1]
    return limits[0], max(1, min(_product(width, by_height), limits[1]))


def _quotient(limit: int, size: int, *, rounded: bool) -> Number:
    """The published processor has sides of canvases as float32 tensors, and those of pictures as numbers of Python."""
    return np.float32(limit) / np.float32(size) if rounded else limit / size


def _product(size: int, scale: Number) -> int:
    """Whole pixels, by the precision of `scale`."""
    return math.floor(np.float32(size) * scale if isinstance(scale, np.float32) else size * scale)


def _tiles(image: Image, rows: int, columns: int, side: int) -> list[Image]:
    """The tiles of a canvas, row by row, with `image` in its upper left corner and black behind it."""
    return [
        image.crop((x * side, y * side, (x + 1) * side, (y + 1) * side)) for y in range(rows) for x in range(columns)
    ]
