"""Pictures for LLaVA, as transformers' processors make them: one square (1.5), or a square and tiles of it (1.6).

The picture in tiles ("anyres") is as large as the best of a few resolutions lets it be, on a black ground. Rows and
columns of patches that see nothing but ground are left out, and each row ends with a newline.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from ollama_engine.input import FloatArray, Int32Array, PreparedImage
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.llava.vision import VisionOptions
from ollama_engine.multimodal.image import on_white
from ollama_engine.multimodal.pixels import CLIP_MEAN, CLIP_STD, normalized, unfold
from ollama_engine.multimodal.resampling import FILTERS
from ollama_engine.multimodal.squares import FITS, resized, square
from ollama_engine.nn.vision import read_normalization

if TYPE_CHECKING:
    from PIL.Image import Image

Size = tuple[int, int]
"""(height, width), as transformers' code and files have it."""


class Preprocessor:
    """Arrays of a picture: `patches` f32 [tiles, n_patches, 3 * patch_size^2], `rows` and `layout` (see VisionPart)."""

    def __init__(self, metadata: Metadata, options: VisionOptions, *, newline: bool) -> None:
        self.options = options
        self.mean, self.std = read_normalization(metadata, CLIP_MEAN, CLIP_STD)
        self.filter = metadata.str("vision.image_resample", "bicubic")
        # Our converter always says what the published processor does. The model itself was trained on whole pictures.
        self.fit = metadata.str("vision.image_aspect_ratio", "pad")
        if self.fit not in (*FITS, "anyres") or self.filter not in FILTERS:
            raise UnsupportedModelError(
                f"{metadata.key('vision.image_aspect_ratio')} is {self.fit!r} and image_resample {self.filter!r}; "
                f"supported: {', '.join(FITS)}; {', '.join(FILTERS)}"
            )
        self.resolutions = read_resolutions(metadata, options.image_size)
        if self.resolutions and not newline:
            raise ModelFormatError(
                "the file lists resolutions of pictures in tiles, but has no tensor mm.image_newline.weight; convert "
                "the model again"
            )

    def prepare(self, image: Image) -> PreparedImage:
        """A picture of any size, RGB or RGBA."""
        side = self.options.image_size
        image = on_white(image)
        if not self.resolutions:
            fitted = square(image, side, self.fit, self.filter, self.mean)
            return self._one(self._patches(np.asarray(fitted)[None]))
        size = (image.height, image.width)
        best = best_resolution(size, self.resolutions)
        whole = np.asarray(resized(image, side, side, self.filter))
        tiles = [whole, *_tiles(self._on_ground(image, best), side)]
        return self._tiled(self._patches(np.stack(tiles)), size, best)

    def largest(self) -> PreparedImage:
        """The one with the most tiles, which fills them."""
        o = self.options
        best = max(self.resolutions, key=math.prod, default=(0, 0))
        tiles = 1 + math.prod(best) // o.image_size**2
        patches = np.zeros((tiles, o.n_patches, o.n_channels * o.patch_size**2), np.float32)
        return self._tiled(patches, best, best) if self.resolutions else self._one(patches)

    def _patches(self, tiles: np.ndarray) -> FloatArray:
        """Pixels uint8 [tiles, side, side, 3] -> patches."""
        size = self.options.patch_size
        return np.stack([unfold(normalized(tile, self.mean, self.std), size) for tile in tiles])

    def _one(self, patches: FloatArray) -> PreparedImage:
        o = self.options
        first = 0 if o.keeps_class else int(o.class_token)
        rows = np.arange(first, o.n_places, dtype=np.int32)
        return PreparedImage({"patches": patches, "rows": rows}, n_inputs=len(rows))

    def _on_ground(self, image: Image, best: Size) -> Image:
        """The picture in the middle of a black one of the size `best`."""
        height, width = fitted_size((image.height, image.width), best)
        left, top = (best[1] - width) // 2, (best[0] - height) // 2
        return resized(image, width, height, self.filter).crop((-left, -top, best[1] - left, best[0] - top))

    def _tiled(self, patches: FloatArray, size: Size, best: Size) -> PreparedImage:
        o = self.options
        tiles = (best[0] // o.image_size, best[1] // o.image_size)
        seen = _seen(size, tiles, o)
        first = int(o.class_token) + np.arange(o.n_patches)
        rows = np.concatenate([first, seen.reshape(-1)]).astype(np.int32)
        order = np.arange(o.n_patches, len(rows)).reshape(seen.shape)
        newlines = np.full((len(order), 1), len(rows))
        layout = np.concatenate([np.arange(o.n_patches), np.hstack([order, newlines]).reshape(-1)])
        arrays: dict[str, FloatArray | Int32Array] = {
            "patches": patches,
            "rows": rows,
            "layout": layout.astype(np.int32),
        }
        return PreparedImage(arrays, n_inputs=len(layout), grid=tiles)


def _seen(size: Size, tiles: Size, o: VisionOptions) -> np.ndarray:
    """The hidden states of patches in tiles where there is something of the picture: int [rows, columns].

    transformers calculates it from the picture's proportions, so it may be a patch more or less than the picture has.
    """
    rows, columns = (np.arange(n * o.grid) for n in tiles)
    if size[1] / size[0] > len(columns) / len(rows):
        ground = (len(rows) - int(round(size[0] * (len(columns) / size[1]), 7))) // 2
        rows = rows[ground : len(rows) - ground]
    else:
        ground = (len(columns) - int(round(size[1] * (len(rows) / size[0]), 7))) // 2
        columns = columns[ground : len(columns) - ground]
    r, c = rows[:, None], columns[None]
    tile = 1 + r // o.grid * tiles[1] + c // o.grid  # the first is the picture as a whole
    found: np.ndarray = tile * o.n_places + int(o.class_token) + r % o.grid * o.grid + c % o.grid
    return found


def read_resolutions(metadata: Metadata, side: int) -> tuple[Size, ...]:
    """The sizes that a picture in tiles may have. Raises ModelFormatError where they are no multiples of a tile.

    transformers lists (height, width), LLaVA's own files and llama.cpp's have (width, height).
    """
    listed = metadata.list("vision.image_grid_pinpoints", [])
    turned = metadata.list("vision.image_grid_sizes", [])
    sizes = [*zip(listed[::2], listed[1::2], strict=False), *zip(turned[1::2], turned[::2], strict=False)]
    wrong = [size for size in sizes if not all(type(n) is int and n > 0 and n % side == 0 for n in size)]
    if wrong or len(listed) % 2 or len(turned) % 2:
        raise ModelFormatError(
            f"{metadata.key('vision.image_grid_pinpoints')} lists {listed or turned}; expected pairs of multiples of "
            f"{side}, the side of a tile"
        )
    return tuple(sizes)


def best_resolution(size: Size, resolutions: tuple[Size, ...]) -> Size:
    """The resolution in which most of a picture's pixels are kept; of several, the one with the smallest ground."""

    def merit(resolution: Size) -> tuple[int, int]:
        scale = min(resolution[1] / size[1], resolution[0] / size[0])
        kept = min(int(size[1] * scale) * int(size[0] * scale), math.prod(size))
        return kept, kept - math.prod(resolution)

    return max(resolutions, key=merit)


def fitted_size(size: Size, room: Size) -> Size:
    """The largest size of the same proportions within `room`."""
    across, down = room[1] / size[1], room[0] / size[0]
    if across < down:
        return min(math.ceil(size[0] * across), room[0]), room[1]
    return room[0], min(math.ceil(size[1] * down), room[1])


def _tiles(image: Image, side: int) -> list[np.ndarray]:
    pixels = np.asarray(image)
    return [
        pixels[top : top + side, left : left + side]
        for top in range(0, image.height, side)
        for left in range(0, image.width, side)
    ]
