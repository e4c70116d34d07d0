"""Pictures for Qwen3-VL and Qwen3.5: patches block by block, and where each lies in the table of position embeddings.

The table has an embedding for each place of a square grid. A picture's grid is stretched over it, corner to corner, and
a patch takes the four embeddings around it, weighted by how near they are.
"""

from __future__ import annotations

import numpy as np

from ollama_engine.input import FloatArray, Int32Array, PreparedImage
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.qwen3vl.vision import VisionOptions
from ollama_engine.models.qwen25vl.blocks import BlockPreprocessor

LIMITS = 65_536, 16_777_216
"""Least and most pixels of the published processors."""
HALF = (0.5, 0.5, 0.5)


class Preprocessor(BlockPreprocessor):
    def __init__(self, metadata: Metadata, options: VisionOptions) -> None:
        self.options = options
        super().__init__(metadata, options, limits=LIMITS, mean=HALF, std=HALF)

    def _prepared(self, patches: FloatArray, rows: int, columns: int) -> PreparedImage:
        """Arrays `patches`, `positions`, `corners` and `weights`, as `vision.Tower.forward` takes them."""
        merge, side = self.options.merge, self.options.grid
        arrays = self._in_blocks(patches, np.arange(rows * columns, dtype=np.int32), columns)
        row, column = arrays["positions"][:2]
        (top, down), (left, right) = around(row, rows * merge, side), around(column, columns * merge, side)
        pairs = [(y, x) for y in (top, down) for x in (left, right)]
        arrays |= {
            "corners": np.stack([y[0] * side + x[0] for y, x in pairs]).astype(np.int32),
            "weights": np.stack([y[1] * x[1] for y, x in pairs]),
        }
        return self._in_prompt(arrays, rows, columns)


Near = tuple[Int32Array, FloatArray]
"""Places in the table along one axis, and how much each counts, from 0 to 1."""


def around(at: Int32Array, n: int, side: int) -> tuple[Near, Near]:
    """The two places of a table of `side` places around each of `at`, which count `n` along this axis.

    Source: `get_vision_interpolation_indices_and_weights` of transformers, in its order and precision.
    """
    exact = at.astype(np.float32) * np.float32(side - 1) / np.float32(max(n - 1, 1))
    before = np.floor(exact)
    distances = [np.abs(exact - before - np.float32(offset)) for offset in (0, 1)]
    places = [np.minimum(before.astype(np.int32) + np.int32(offset), np.int32(side - 1)) for offset in (0, 1)]
    first, second = ((p, np.maximum(np.float32(1) - d, np.float32(0))) for p, d in zip(places, distances, strict=True))
    return first, second
