"""Pictures for LFM2-VL, as transformers' Lfm2VlImageProcessor makes them: whole, and large ones in tiles besides.

A picture is resized so that it has between `fewest` and `most` embeddings, and hardly distorted. One that is far larger
comes as a grid of tiles, too, whose proportions are nearest to its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ollama_engine.errors import ImageError, ModelFormatError
from ollama_engine.input import FloatArray, Int32Array, PreparedImage
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.lfm2_vl.vision import VisionOptions, stretched
from ollama_engine.models.tiled import TiledPreparation
from ollama_engine.multimodal.image import on_white
from ollama_engine.multimodal.resampling import BILINEAR
from ollama_engine.multimodal.tiles import closest_grid, tiles_of

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_TILES, MOST_TOKENS = 128, 1 << 14
"""More than any published model makes of a picture: 10 and 256."""


@dataclass(frozen=True)
class Limits:
    """How many tiles and embeddings pictures have; the defaults are those of the published processor."""

    fewest_tiles: int = 2
    most_tiles: int = 10
    fewest: int = 64
    """Embeddings of a whole picture."""
    most: int = 256
    tolerance: float = 2.0
    """How many times `most` embeddings a picture may be worth without being cut into tiles."""
    splits: bool = True
    whole: bool = True
    """Whether a picture in tiles comes as a whole, too."""


def read_limits(metadata: Metadata) -> Limits:
    """Raises ModelFormatError for limits that contradict each other."""
    made = Limits(
        metadata.u32("vision.preproc_min_tiles", Limits.fewest_tiles),
        metadata.u32("vision.preproc_max_tiles", Limits.most_tiles),
        metadata.u32("vision.min_image_tokens", Limits.fewest),
        metadata.u32("vision.max_image_tokens", Limits.most),
        metadata.f32("vision.max_pixels_tolerance", Limits.tolerance),
        metadata.bool("vision.image_splitting", Limits.splits),
        metadata.bool("vision.use_thumbnail", Limits.whole),
    )
    if not (1 <= made.fewest_tiles <= made.most_tiles <= MOST_TILES and 1 <= made.fewest <= made.most <= MOST_TOKENS):
        raise ModelFormatError(
            f"limits of pictures (vision.preproc_min_tiles and others) are {made}; expected 1 to {MOST_TILES} tiles, "
            f"1 to {MOST_TOKENS} embeddings, and the least no more than the most"
        )
    return made


class Preprocessor(TiledPreparation):
    """Arrays `tiles` f32 [n, patches, 3 * patch_size^2] and `whole` [1, ...], where there are some; and the places of
    their patches, `tiles_places` and `whole_places` (`vision.stretched`).

    Grid: (rows, columns) of tiles, 0 for a picture without, and columns of patches of the whole.
    """

    def __init__(self, metadata: Metadata, options: VisionOptions) -> None:
        super().__init__(metadata, options)
        self.options: VisionOptions = options
        self.limits = read_limits(metadata)
        self._most_pixels = max(self.limits.most * options.block**2, options.tile_size**2)

    def prepare(self, image: Image) -> PreparedImage:
        """A picture of any size, RGB or RGBA; transparent pixels become white."""
        o, limits, image = self.options, self.limits, on_white(image)
        rows = columns = 0
        tiles: list[Image] = []
        if limits.splits and limits.most_tiles > 1 and self._is_large(*image.size):
            columns, rows = closest_grid(*image.size, o.tile_size, limits.fewest_tiles, limits.most_tiles)
            tiles = tiles_of(image.resize((columns * o.tile_size, rows * o.tile_size), BILINEAR), o.tile_size)
        size = fitted_size(*image.size, o.block, limits)
        if size[0] * size[1] > self._most_pixels:
            raise ImageError(f"a picture of {image.width} x {image.height} pixels is too long for this model: resized "
                             f"to {size[0]} x {size[1]}, it takes more than {limits.most} embeddings")  # fmt: skip
        whole = [image.resize(size, BILINEAR)] if limits.whole or len(tiles) < 2 else []
        if len(tiles) == 1:
            tiles, whole = [], tiles
        cut, uncut = (self.patches(pictures, fused=True) for pictures in (tiles, whole))
        return self._prepared(cut, uncut, size if whole else (0, 0), (rows, columns))

    def largest(self) -> PreparedImage:
        """A row of as many tiles as there may be, and a whole picture of as many embeddings."""
        o, limits = self.options, self.limits
        n_tiles, blocks = limits.most_tiles if limits.splits else 0, self._most_pixels // o.block**2
        whole = self.blank(1, blocks * o.merge**2)
        tiles = self.blank(n_tiles, (o.tile_size // o.patch_size) ** 2)
        return self._prepared(tiles, whole, (blocks * o.block, o.block), (int(n_tiles > 0), n_tiles))

    def _is_large(self, width: int, height: int) -> bool:
        o = self.options
        across, down = (max(o.patch_size, round(n / o.block) * o.block) for n in (width, height))
        return across * down > self.limits.most * o.block**2 * self.limits.tolerance

    def _prepared(
        self, tiles: FloatArray, whole: FloatArray, size: tuple[int, int], grid: tuple[int, int]
    ) -> PreparedImage:
        o = self.options
        side, (columns, rows) = o.tile_size // o.patch_size, (n // o.patch_size for n in size)
        arrays: dict[str, FloatArray | Int32Array] = {}
        for name, pixels, shape in (("tiles", tiles, (side, side)), ("whole", whole, (rows, columns))):
            if len(pixels):
                arrays |= {name: pixels, f"{name}_places": stretched(*shape, o)}
        n_inputs = (tiles.shape[0] * tiles.shape[1] + whole.shape[0] * whole.shape[1]) // o.merge**2
        return PreparedImage(arrays, n_inputs, grid=(*(grid if len(tiles) else (0, 0)), columns))


def fitted_size(width: int, height: int, block: int, limits: Limits) -> tuple[int, int]:
    """(width, height) in whole blocks, for `fewest` to `most` of them where the proportions allow it."""
    across, down = (max(block, round(n / block) * block) for n in (width, height))
    fewest, most = (n * block**2 for n in (limits.fewest, limits.most))
    if across * down > most:
        shrink = math.sqrt((height * width) / most)
        across, down = (max(block, math.floor(n / shrink / block) * block) for n in (width, height))
    elif across * down < fewest:
        grow = math.sqrt(fewest / (height * width))
        across, down = (math.ceil(n * grow / block) * block for n in (width, height))
    return across, down
