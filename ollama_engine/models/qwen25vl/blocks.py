"""Pictures of any size in whole blocks of patches, as transformers' Qwen2VLImageProcessor makes them.

All families since Qwen2-VL have this processor, with limits, colours and patches of their own.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from ollama_engine.errors import ImageError, ModelFormatError
from ollama_engine.input import FloatArray, Int32Array, PreparedImage
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.multimodal.image import on_white
from ollama_engine.multimodal.pixels import normalized, patches_of_blocks, unfold
from ollama_engine.multimodal.resampling import BICUBIC
from ollama_engine.nn.vision import read_normalization

if TYPE_CHECKING:
    from collections.abc import Mapping

    from PIL.Image import Image

__all__ = ["BlockOptions", "BlockPreprocessor"]

log = logging.getLogger(__name__)

LONGEST = 200
"""How many times as long as wide a picture may be."""


class BlockOptions(Protocol):
    """The options of a tower that matter here."""

    @property
    def patch_size(self) -> int: ...

    @property
    def n_channels(self) -> int: ...

    @property
    def merge(self) -> int:
        """Side of a block in patches."""


class BlockPreprocessor:
    """Resize (bicubic), normalize, cut into patches, block by block; a subclass may have another order of blocks."""

    frames: ClassVar[int] = 1
    """How often a pixel counts where sizes are compared with limits of pixels."""

    def __init__(
        self, metadata: Metadata, options: BlockOptions, *, limits: tuple[int, int],
        mean: Sequence[float], std: Sequence[float],
    ) -> None:  # fmt: skip
        """`limits`: least and most pixels, for files that say none, as `mean` and `std` are."""
        self._blocks = options
        self.side = options.patch_size * options.merge
        self._row = self.frames * self.side**2
        self.mean, self.std = read_normalization(metadata, mean, std)
        self.min_pixels = metadata.u32("vision.min_pixels", limits[0])
        self.max_pixels = metadata.u32("vision.max_pixels", limits[1])
        if not 1 <= self.min_pixels <= self.max_pixels or self.max_pixels < self._row:
            raise ModelFormatError(
                f"{metadata.key('vision.min_pixels')} is {self.min_pixels} and vision.max_pixels {self.max_pixels}; "
                f"expected 1 up to the latter, which is at least a block of {self._row} pixels"
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
        patches = unfold(normalized(resized, self.mean, self.std), self._blocks.patch_size)
        return self._prepared(patches, height // self.side, width // self.side)

    def limit_rows(self, most: int) -> None:
        """Shrink pictures that would have more than `most` rows of embeddings, at least 1."""
        self.max_pixels = min(self.max_pixels, max(1, most) * self._row)
        self.min_pixels = min(self.min_pixels, self.max_pixels)

    def largest(self) -> PreparedImage:
        """All zeros, nearly a square, with about as many rows of embeddings as `max_pixels` allows."""
        o = self._blocks
        rows, columns = self.largest_grid(self.max_pixels // self._row)
        return self._prepared(
            np.zeros((rows * columns * o.merge**2, o.n_channels * o.patch_size**2), np.float32), rows, columns
        )

    def largest_grid(self, n: int) -> tuple[int, int]:
        """Rows and columns of up to `n` blocks whose graph takes the most memory: a single row.

        Where every patch attends to all others, the form does not matter.
        """
        return 1, n

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
        side, area = self.side, self.frames * height * width
        most = self.max_pixels if max_pixels is None else max_pixels
        to = [round(n / side) * side for n in (height, width)]
        if self.frames * to[0] * to[1] > most:
            shrink = math.sqrt(area / most)
            to = [max(side, math.floor(n / shrink / side) * side) for n in (height, width)]
        elif self.frames * to[0] * to[1] < self.min_pixels:
            grow = math.sqrt(self.min_pixels / area)
            to = [math.ceil(n * grow / side) * side for n in (height, width)]
        return to[0], to[1]

    def _prepared(self, patches: FloatArray, rows: int, columns: int) -> PreparedImage:
        """`patches` row by row -> what the tower reads; `rows` and `columns` count blocks."""
        arrays = self._in_blocks(patches, np.arange(rows * columns, dtype=np.int32), columns)
        return self._in_prompt(arrays, rows, columns)

    def _in_blocks(self, patches: FloatArray, order: Int32Array, columns: int) -> dict[str, FloatArray | Int32Array]:
        """Arrays `patches`, block by block in this `order`, and `positions`: row, column, and two axes of zeros."""
        merge = self._blocks.merge
        row, column = patches_of_blocks(order, columns, merge)
        nothing = np.zeros_like(row)
        return {
            "patches": patches[row * (columns * merge) + column],
            "positions": np.stack([row, column, nothing, nothing]),
        }

    @staticmethod
    def _in_prompt(arrays: Mapping[str, FloatArray | Int32Array], rows: int, columns: int) -> PreparedImage:
        """The arrays of an image, and positions of its embeddings: time, row, column, and time once more."""
        y, x = np.divmod(np.arange(rows * columns, dtype=np.int32), np.int32(columns))
        return PreparedImage(
            arrays,
            n_inputs=rows * columns,
            grid=(rows, columns),
            positions=np.stack([np.zeros_like(y), y, x, np.zeros_like(y)]),
            n_positions=max(rows, columns),
        )
