"""Pictures for DeepSeek-OCR, as the published code makes them: whole on a grey square, and large ones in tiles besides.

The grid of tiles is the one whose proportions are nearest to the picture's, which is distorted to them. Source:
deepseek-ai/DeepSeek-OCR's `infer` with `crop_mode`, which uses Pillow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ollama_engine.errors import ModelFormatError
from ollama_engine.input import FloatArray, Int32Array, PreparedImage
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.deepseek_ocr.vision import PATCHES_OF_ONE, VisionOptions
from ollama_engine.multimodal.image import on_white
from ollama_engine.multimodal.pixels import normalized, unfold
from ollama_engine.multimodal.resampling import BICUBIC
from ollama_engine.multimodal.tiles import closest_grid, tiles_of
from ollama_engine.nn.vision import read_normalization

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL.Image import Image

HALF = (0.5, 0.5, 0.5)
GROUND = (127, 127, 127)
MOST_TILES = 16
"""The graphs of so many fit into the nodes that are planned for a file; the published model makes 9 at most."""


class Preprocessor:
    """Arrays `whole` f32 [1, patches, 3 * patch_size^2], `tiles` [n, ...] where there are some, and `layout` i32: the
    rows of the tiles' embeddings and those of the whole, a newline behind each line, and a separator at the end.

    Grid: (rows, columns) of tiles, 0 for a picture without.
    """

    def __init__(self, metadata: Metadata, options: VisionOptions) -> None:
        self.options = options
        self.side = options.sam.image_size
        self.mean, self.std = read_normalization(metadata, HALF, HALF)
        self.fewest = metadata.u32("vision.preproc_min_tiles", 2)
        self.most = metadata.u32("vision.preproc_max_tiles", 9)
        if not 1 <= self.fewest <= self.most <= MOST_TILES:
            raise ModelFormatError(
                f"{metadata.key('vision.preproc_min_tiles')} is {self.fewest} and preproc_max_tiles {self.most}; "
                f"expected 1 to {MOST_TILES}, the second no less"
            )

    def prepare(self, image: Image) -> PreparedImage:
        """A picture of any size, RGB or RGBA; transparent pixels become white."""
        image, tile = on_white(image), self.options.tile
        tiles: list[Image] = []
        columns = rows = 0
        if max(image.size) > tile:
            columns, rows = closest_grid(*image.size, tile, self.fewest, self.most)
            tiles = tiles_of(image.resize((columns * tile, rows * tile), BICUBIC), tile)
        return self._prepared(self._patches([self._on_ground(image)]), self._patches(tiles), (rows, columns))

    def largest(self) -> PreparedImage:
        """A column of as many tiles as there may be, which has the most lines and so the most newlines."""
        o, n = self.options.sam, self.options.sam.n_channels * self.options.sam.patch_size**2
        whole = np.zeros((1, o.n_patches, n), np.float32)
        tiles = np.zeros((self.most, (self.options.tile // o.patch_size) ** 2, n), np.float32)
        return self._prepared(whole, tiles, (self.most, 1))

    def _on_ground(self, image: Image) -> Image:
        from PIL import ImageOps  # noqa: PLC0415 (text models work without Pillow)

        return ImageOps.pad(image, (self.side, self.side), BICUBIC, GROUND)

    def _patches(self, pictures: Sequence[Image]) -> FloatArray:
        size = self.options.sam.patch_size
        pixels = [unfold(normalized(picture, self.mean, self.std), size) for picture in pictures]
        return np.stack(pixels) if pixels else np.zeros((0, 0, 0), np.float32)

    def _prepared(self, whole: FloatArray, tiles: FloatArray, grid: tuple[int, int]) -> PreparedImage:
        across = self.options.tile // self.options.sam.patch_size // PATCHES_OF_ONE
        side = self.side // self.options.sam.patch_size // PATCHES_OF_ONE
        rows, columns = grid
        n_tiled, n = rows * columns * across**2, rows * columns * across**2 + side**2
        # [rows, columns, lines of a tile, ...] -> lines of all
        lines = np.arange(n_tiled).reshape(rows, columns, across, across).swapaxes(1, 2)
        parts = [lines.reshape(rows * across, columns * across), np.arange(n_tiled, n).reshape(side, side)]
        ended = [np.pad(part, ((0, 0), (0, 1)), constant_values=n).reshape(-1) for part in parts if part.size]
        layout = np.concatenate([*ended, [n + 1]]).astype(np.int32)
        arrays: dict[str, FloatArray | Int32Array] = {"whole": whole, "layout": layout}
        if len(tiles):
            arrays["tiles"] = tiles
        return PreparedImage(arrays, n_inputs=len(layout), grid=grid)
