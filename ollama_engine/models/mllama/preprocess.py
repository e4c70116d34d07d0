"""Pictures to tiles of patches for Llama 3.2 Vision, equal to what transformers' processor makes of them.

A canvas of few tiles is chosen on which the picture is shown largest; it is shrunk or grown to fit, and the rest of the
canvas stays black. See MllamaImageProcessor of transformers and the model's technical report (Meta 2024).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ollama_engine.input import FloatArray, Int32Array, PreparedImage
from ollama_engine.models.mllama.options import VisionOptions, tile_grids
from ollama_engine.multimodal.image import on_white
from ollama_engine.multimodal.pixels import normalized, unfold
from ollama_engine.multimodal.resampling import BILINEAR

if TYPE_CHECKING:
    from PIL.Image import Image


def preprocess(image: Image, o: VisionOptions) -> PreparedImage:
    """Arrays: `patches` f32 [patches of all tiles, patch_length]; `ratio` i32 [1], the number of the aspect ratio."""
    grid = choose_grid(image.width, image.height, o.tile_size, o.max_tiles)
    canvas = on_canvas(on_white(image), grid, o.tile_size)
    return prepare(normalized(canvas, o.mean, o.std), grid, o)


def prepare(pixels: FloatArray, grid: tuple[int, int], o: VisionOptions) -> PreparedImage:
    """The tower's input from a canvas f32 [3, height, width] of `grid` (rows, columns) tiles."""
    # The aspect ratio is (rows, columns): embeddings of tiles are stored in that order.
    ratio = np.array([1 + o.ratios.index(grid)], dtype=np.int32)
    n_rows = grid[0] * grid[1] * o.n_places
    arrays: dict[str, FloatArray | Int32Array] = {"patches": patches_of(pixels, grid, o.patch_size), "ratio": ratio}
    return PreparedImage(arrays, 1, grid, cross_attention=True, n_rows=n_rows)


def choose_grid(width: int, height: int, tile: int, max_tiles: int) -> tuple[int, int]:
    """The canvas for a picture, in (rows, columns) of tiles of `tile` pixels.

    Where it fits unshrunk on some canvases, the one that it must be enlarged for least; otherwise the one that it must
    be shrunk for least. Among equals the smallest, and the first of those.
    """
    scales = {
        (rows, columns): min(rows * tile / height, columns * tile / width) for rows, columns in tile_grids(max_tiles)
    }
    larger = [scale for scale in scales.values() if scale >= 1]
    chosen = min(larger) if larger else max(scales.values())
    return min((grid for grid, scale in scales.items() if scale == chosen), key=lambda grid: grid[0] * grid[1])


def fitted_size(width: int, height: int, grid: tuple[int, int], tile: int) -> tuple[int, int]:
    """(width, height) of a picture on its canvas: as large as the canvas allows, at least 1 pixel.

    A picture within the canvas keeps its size, except that it grows to the size of a tile.
    """
    most_height, most_width = (min(max(size, tile), n * tile) for size, n in zip((height, width), grid, strict=True))
    by_height, by_width = most_height / height, most_width / width
    if by_width < by_height:
        return most_width, min(math.floor(height * by_width) or 1, most_height)
    return min(math.floor(width * by_height) or 1, most_width), most_height


def on_canvas(image: Image, grid: tuple[int, int], tile: int) -> Image:
    """The picture in the upper left corner of a black canvas."""
    resized = image.resize(fitted_size(image.width, image.height, grid, tile), BILINEAR)
    return resized.crop((0, 0, grid[1] * tile, grid[0] * tile))  # black where there is no picture


def patches_of(pixels: FloatArray, grid: tuple[int, int], patch: int) -> FloatArray:
    """f32 [3, height, width] -> [tiles * patches, 3 * patch * patch], tile by tile and patch by patch, each by rows."""
    rows, columns = grid
    channels, height, width = pixels.shape
    split = pixels.reshape(channels, rows, height // rows, columns, width // columns)
    return np.concatenate([unfold(split[:, i, :, j], patch) for i in range(rows) for j in range(columns)])
