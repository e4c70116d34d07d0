"""Pictures for InternVL, as transformers' GotOcr2ImageProcessor makes them: a grid of tiles, and the whole picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ollama_engine.errors import ModelFormatError
from ollama_engine.input import PreparedImage
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.tiled import TiledOptions, TiledPreparation
from ollama_engine.multimodal.image import on_white
from ollama_engine.multimodal.resampling import BICUBIC
from ollama_engine.multimodal.tiles import closest_grid, tiles_of

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_TILES = 128
"""More than any published model makes of a picture: 12."""


class Preprocessor(TiledPreparation):
    """The grid whose proportions are nearest to the picture's, which is distorted to them; several tiles get another
    one of the whole picture. Grid: (rows, columns).
    """

    MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's

    def __init__(self, metadata: Metadata, options: TiledOptions) -> None:
        super().__init__(metadata, options)
        self.fewest = metadata.u32("vision.preproc_min_tiles", 1)
        self.most = metadata.u32("vision.preproc_max_tiles", 12)
        if not 1 <= self.fewest <= self.most <= MOST_TILES:
            raise ModelFormatError(
                f"{metadata.key('vision.preproc_min_tiles')} is {self.fewest} and preproc_max_tiles {self.most}; "
                f"expected 1 to {MOST_TILES}, the second no less"
            )

    def prepare(self, image: Image) -> PreparedImage:
        """A picture of any size, RGB or RGBA; transparent pixels become white."""
        side, image = self.options.image_size, on_white(image)
        columns, rows = closest_grid(*image.size, side, self.fewest, self.most)
        tiles = tiles_of(image.resize((columns * side, rows * side), BICUBIC), side)
        whole = [image.resize((side, side), BICUBIC)] if len(tiles) > 1 else []
        return self.prepared([*tiles, *whole], (rows, columns))

    def largest(self) -> PreparedImage:
        """A row of as many tiles as there may be."""
        return self.zeros(self.most + (self.most > 1), (1, self.most))
