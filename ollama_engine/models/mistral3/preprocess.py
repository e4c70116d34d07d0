"""Pictures for Mistral 3, as transformers' PixtralImageProcessor makes them: any size, in whole blocks of patches."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ollama_engine.errors import ModelFormatError
from ollama_engine.input import FloatArray, PreparedImage
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.mistral3.vision import VisionOptions
from ollama_engine.multimodal.image import on_white
from ollama_engine.multimodal.pixels import CLIP_MEAN, CLIP_STD, normalized, patches_of_blocks, unfold
from ollama_engine.multimodal.resampling import BICUBIC
from ollama_engine.nn.vision import read_normalization

if TYPE_CHECKING:
    from PIL.Image import Image

LONGEST_EDGE = 1540
"""Pixels of the longest edge in the published processors, for files that do not say."""
MOST_PIXELS = 1 << 14
"""Most pixels of the longest edge: memory for a square of it is reserved."""


class Preprocessor:
    """Resize (bicubic), normalize, cut into patches block by block."""

    def __init__(self, metadata: Metadata, options: VisionOptions) -> None:
        self.options = options
        self.side = options.patch_size * options.merge
        self.mean, self.std = read_normalization(metadata, CLIP_MEAN, CLIP_STD)
        self.longest = metadata.u32("vision.longest_edge", metadata.u32("vision.image_size", LONGEST_EDGE))
        if not 1 <= self.longest <= MOST_PIXELS:
            raise ModelFormatError(
                f"{metadata.key('vision.longest_edge')} is {self.longest}, expected 1 to {MOST_PIXELS} pixels"
            )

    def prepare(self, image: Image) -> PreparedImage:
        """A picture of any size, RGB or RGBA; transparent pixels become white."""
        rows, columns = self.grid(image.height, image.width)
        resized = on_white(image).resize((columns * self.side, rows * self.side), BICUBIC)
        return self._prepared(unfold(normalized(resized, self.mean, self.std), self.options.patch_size), rows, columns)

    def largest(self) -> PreparedImage:
        """All zeros."""
        o = self.options
        rows, columns = self.grid(self.longest, self.longest)
        patches = np.zeros((rows * columns * o.merge**2, o.n_channels * o.patch_size**2), np.float32)
        return self._prepared(patches, rows, columns)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of blocks: both sides shrink until the longer one fits, and are rounded up to blocks.

        Source: `get_resize_output_image_size` of transformers, which fails where a side shrinks to nothing; here it is
        one pixel then.
        """
        ratio = max(height / self.longest, width / self.longest)
        if ratio > 1:
            height, width = (max(1, math.floor(n / ratio)) for n in (height, width))
        return -(-height // self.side), -(-width // self.side)

    def _prepared(self, patches: FloatArray, rows: int, columns: int) -> PreparedImage:
        """`patches` row by row -> arrays `patches` and `positions` as `vision.VisionPart.forward` takes them."""
        merge = self.options.merge
        row, column = patches_of_blocks(np.arange(rows * columns, dtype=np.int32), columns, merge)
        nothing = np.zeros_like(row)
        arrays = {
            "patches": patches[row * (columns * merge) + column],
            "positions": np.stack([row, column, nothing, nothing]),
        }
        return PreparedImage(arrays, n_inputs=rows * columns, grid=(rows, columns))
