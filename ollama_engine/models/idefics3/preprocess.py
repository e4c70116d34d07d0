"""Pictures for Idefics 3 and SmolVLM, as transformers' Idefics3ImageProcessor makes them: tiles, and the whole picture.

The longer edge becomes as long as a few tiles, whatever the picture's size; then both edges become multiples of a tile.
Where that is more than one tile, another one shows the whole picture, distorted to a square.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ollama_engine.errors import ModelFormatError
from ollama_engine.input import PreparedImage
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.tiled import TiledOptions, TiledPreparation
from ollama_engine.multimodal.image import on_white
from ollama_engine.multimodal.resampling import LANCZOS
from ollama_engine.multimodal.tiles import tiles_of

if TYPE_CHECKING:
    from PIL.Image import Image

LONGEST = 4096
"""Longest edge that the published processor allows."""
TILES = 4
"""Tiles along the longer edge in all published models; early files of llama.cpp do not say."""


class Preprocessor(TiledPreparation):
    """Tiles row by row, then the whole picture. Grid: (rows, columns), 0 for a picture of one tile."""

    def __init__(self, metadata: Metadata, options: TiledOptions) -> None:
        super().__init__(metadata, options)
        key = "vision.preproc_image_size"
        self.longest = metadata.u32(key, TILES * options.image_size)
        self.splits = metadata.bool("vision.image_splitting", True)
        if not 1 <= self.longest <= LONGEST:
            raise ModelFormatError(f"{metadata.key(key)} is {self.longest}; expected 1 to {LONGEST}, the longer edge "
                                   "of a picture before it is cut into tiles")  # fmt: skip

    def prepare(self, image: Image) -> PreparedImage:
        """A picture of any size, RGB or RGBA; transparent pixels become white."""
        side, image = self.options.image_size, on_white(image)
        image = image.resize(fitted_size(*image.size, self.longest), LANCZOS)
        tiles: list[Image] = []
        rows = columns = 0
        if self.splits:
            image = image.resize(whole_tiles(*image.size, side), LANCZOS)
            if image.size != (side, side):
                tiles = tiles_of(image, side)
                rows, columns = image.height // side, image.width // side
        return self.prepared([*tiles, image.resize((side, side), LANCZOS)], (rows, columns))

    def largest(self) -> PreparedImage:
        """A square of as many tiles as the longer edge lets it have."""
        n = math.ceil(self.longest / self.options.image_size) if self.splits else 1
        rows = n if n > 1 else 0
        return self.zeros(rows**2 + 1, (rows, rows))


def fitted_size(width: int, height: int, longest: int) -> tuple[int, int]:
    """(width, height) of a picture whose longer edge is `longest`; the other one is even, or 1."""
    shape = width / height
    if width >= height:
        height = int(longest / shape)
        return longest, max(height + height % 2, 1)
    width = int(longest * shape)
    return max(width + width % 2, 1), longest


def whole_tiles(width: int, height: int, side: int) -> tuple[int, int]:
    """(width, height) as multiples of `side`: the longer edge rounded up first, and the other one as it makes it."""
    shape = width / height
    if width >= height:
        width = math.ceil(width / side) * side
        return width, math.ceil(int(width / shape) / side) * side
    height = math.ceil(height / side) * side
    return math.ceil(int(height * shape) / side) * side, height
