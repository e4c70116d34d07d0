"""Pictures for Gemma 4, as transformers' Gemma4ImageProcessor makes them: any shape, about as many blocks for each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ollama_engine.errors import ModelFormatError
from ollama_engine.input import FloatArray, PreparedImage
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.gemma4.vision import VisionOptions
from ollama_engine.multimodal.image import on_white
from ollama_engine.multimodal.pixels import normalized, unfold
from ollama_engine.multimodal.resampling import BICUBIC
from ollama_engine.nn.vision import read_normalization

if TYPE_CHECKING:
    from PIL.Image import Image


class Preprocessor:
    """Resize (bicubic) to as many blocks as fit, cut into patches row by row."""

    def __init__(self, metadata: Metadata, options: VisionOptions) -> None:
        self.options = options
        self.side = options.patch_size * options.pool
        self.mean, self.std = read_normalization(metadata, [0.0] * 3, [1.0] * 3)
        self.most = metadata.u32("vision.max_soft_tokens", 280)
        """Most blocks of a picture."""
        if not 1 <= self.most * options.pool <= options.n_positions:
            raise ModelFormatError(
                f"{metadata.key('vision.max_soft_tokens')} is {self.most}; expected at least 1, and no more blocks "
                f"in a row than {options.n_positions} positions of patches allow"
            )

    def prepare(self, image: Image) -> PreparedImage:
        """A picture of any size, RGB or RGBA; transparent pixels become white."""
        rows, columns = self.grid(image.height, image.width)
        resized = on_white(image).resize((columns * self.side, rows * self.side), BICUBIC)
        return self._prepared(unfold(normalized(resized, self.mean, self.std), self.options.patch_size), rows, columns)

    def largest(self) -> PreparedImage:
        """All zeros: a single row of blocks is as large as any other form."""
        o = self.options
        return self._prepared(
            np.zeros((self.most * o.pool**2, o.n_channels * o.patch_size**2), np.float32), 1, self.most
        )

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of blocks: small pictures grow, large ones shrink.

        Source: `get_aspect_ratio_preserving_size` of transformers.
        """
        factor = math.sqrt(self.most * self.side**2 / (height * width))
        rows, columns = (math.floor(factor * n / self.side) for n in (height, width))
        if rows == 0:
            return 1, min(width // height, self.most)
        if columns == 0:
            return min(height // width, self.most), 1
        return rows, columns

    def _prepared(self, patches: FloatArray, rows: int, columns: int) -> PreparedImage:
        """`patches` row by row -> arrays `patches` and `places`, i32 [2, n]: the column and the row of each."""
        row, column = np.divmod(np.arange(len(patches), dtype=np.int32), np.int32(columns * self.options.pool))
        arrays = {"patches": patches, "places": np.stack([column, row])}
        return PreparedImage(arrays, n_inputs=rows * columns, grid=(rows, columns))
