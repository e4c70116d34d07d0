"""Pictures for Qwen2.5-VL, as transformers' Qwen2VLImageProcessor makes them: any size, in whole blocks of patches."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import numpy as np

from ollama_engine.errors import ImageError, ModelFormatError
from ollama_engine.input import FloatArray, PreparedImage
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.qwen25vl.vision import VisionOptions
from ollama_engine.models.qwen25vl.windows import Windows
from ollama_engine.multimodal.image import on_white
from ollama_engine.multimodal.pixels import CLIP_MEAN, CLIP_STD, normalized, patches_of_blocks, unfold
from ollama_engine.multimodal.resampling import BICUBIC
from ollama_engine.nn.vision import read_normalization

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger(__name__)

MIN_PIXELS = 56 * 56
MAX_PIXELS = 12_845_056
"""Limits of the published processors, for files that say none."""
LONGEST = 200
"""How many times as long as wide a picture may be."""


class Preprocessor:
    """Resize (bicubic), normalize, cut into patches in the order of windows."""

    def __init__(self, metadata: Metadata, options: VisionOptions) -> None:
        self.options = options
        self.side = options.patch_size * options.merge
        self.mean, self.std = read_normalization(metadata, CLIP_MEAN, CLIP_STD)
        self.min_pixels = metadata.u32("vision.min_pixels", MIN_PIXELS)
        self.max_pixels = metadata.u32("vision.max_pixels", MAX_PIXELS)
        if not 1 <= self.min_pixels <= self.max_pixels or self.max_pixels < self.side**2:
            raise ModelFormatError(
                f"{metadata.key('vision.min_pixels')} is {self.min_pixels} and vision.max_pixels {self.max_pixels}; "
                f"expected 1 up to the latter, which is at least a block of {self.side**2} pixels"
            )
        self._published = self.max_pixels

    def prepare(self, image: Image) -> PreparedImage:
        """A picture, RGB or RGBA; transparent pixels become white.

        Raises ImageError where it is more than 200 times as long as wide. One that the context shrinks is logged.
        """
        height, width = self.size(image.height, image.width)
        if (height, width) != (full := self.size(image.height, image.width, self._published)):
            log.warning(
                "a picture of %dx%d pixels is shrunk to %dx%d, since it may take half of num_ctx; the model would take "
                "it as %dx%d", image.width, image.height, width, height, full[1], full[0],
            )  # fmt: skip
        resized = on_white(image).resize((width, height), BICUBIC)
        patches = unfold(normalized(resized, self.mean, self.std), self.options.patch_size)
        return self._prepared(patches, height // self.side, width // self.side)

    def limit_rows(self, most: int) -> None:
        """Shrink pictures that would have more than `most` rows of embeddings, at least 1."""
        self.max_pixels = min(self.max_pixels, max(1, most) * self.side**2)
        self.min_pixels = min(self.min_pixels, self.max_pixels)

    def largest(self) -> PreparedImage:
        """All zeros, nearly a square, with about as many rows of embeddings as `max_pixels` allows.

        With smaller windows at both edges, where it can: windows of four sizes take more memory than those of one.
        """
        o = self.options
        n = self.max_pixels // self.side**2
        near = range(math.isqrt(n), max(0, math.isqrt(n) - o.window), -1)
        rows = next((r for r in near if r % o.window and n // r % o.window), near[0])
        patches = np.zeros((n // rows * rows * o.merge**2, o.n_channels * o.patch_size**2), np.float32)
        return self._prepared(patches, rows, n // rows)

    def size(self, height: int, width: int, max_pixels: int | None = None) -> tuple[int, int]:
        """(height, width) to resize to: multiples of a block near the picture's own, within the limits of pixels.

        `max_pixels`: the upper limit in place of that of the context.

        Source: `smart_resize` of transformers. Halves round to even, and a side below half a block gives 0, which the
        lower limit of pixels then mends.
        """
        if max(height, width) > LONGEST * min(height, width):
            raise ImageError(
                f"the picture has {width}x{height} pixels; this model takes pictures up to {LONGEST} times as long as "
                "wide: cut or resize it"
            )
        side, area = self.side, height * width
        most = self.max_pixels if max_pixels is None else max_pixels
        to = [round(n / side) * side for n in (height, width)]
        if to[0] * to[1] > most:
            shrink = math.sqrt(area / most)
            to = [max(side, math.floor(n / shrink / side) * side) for n in (height, width)]
        elif to[0] * to[1] < self.min_pixels:
            grow = math.sqrt(self.min_pixels / area)
            to = [math.ceil(n * grow / side) * side for n in (height, width)]
        return to[0], to[1]

    def _prepared(self, patches: FloatArray, rows: int, columns: int) -> PreparedImage:
        """`patches` row by row -> arrays `patches`, `positions` and `places` as `vision.Tower.forward` takes them."""
        merge = self.options.merge
        windows = Windows.of(rows, columns, self.options.window)
        row, column = patches_of_blocks(windows.order, columns, merge)
        nothing = np.zeros_like(row)
        arrays = {
            "patches": patches[row * (columns * merge) + column],
            "positions": np.stack([row, column, nothing, nothing]),
            "places": np.argsort(windows.order).astype(np.int32),
        }
        y, x = np.divmod(np.arange(rows * columns, dtype=np.int32), np.int32(columns))
        return PreparedImage(
            arrays,
            n_inputs=rows * columns,
            grid=(rows, columns),
            positions=np.stack([np.zeros_like(y), y, x, np.zeros_like(y)]),
            n_positions=max(rows, columns),
        )
