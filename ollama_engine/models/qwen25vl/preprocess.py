"""Pictures for Qwen2-VL and Qwen2.5-VL: patches in the order of windows."""

from __future__ import annotations

import math

import numpy as np

from ollama_engine.input import FloatArray, PreparedImage
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.qwen25vl.blocks import BlockPreprocessor
from ollama_engine.models.qwen25vl.vision import VisionOptions
from ollama_engine.models.qwen25vl.windows import Windows
from ollama_engine.multimodal.pixels import CLIP_MEAN, CLIP_STD

LIMITS = 56 * 56, 12_845_056
"""Least and most pixels of the published processors."""


class Preprocessor(BlockPreprocessor):
    def __init__(self, metadata: Metadata, options: VisionOptions) -> None:
        self.options = options
        super().__init__(metadata, options, limits=LIMITS, mean=CLIP_MEAN, std=CLIP_STD)

    def largest_grid(self, n: int) -> tuple[int, int]:
        """With smaller windows at both edges where it can: windows of four sizes take more memory than those of one."""
        window = self.options.window
        near = range(math.isqrt(n), max(0, math.isqrt(n) - window), -1)
        rows = next((r for r in near if r % window and n // r % window), near[0])
        return rows, n // rows

    def _prepared(self, patches: FloatArray, rows: int, columns: int) -> PreparedImage:
        """Arrays `patches`, `positions` and `places`, as `vision.Tower.forward` takes them."""
        order = Windows.of(rows, columns, self.options.window).order
        arrays = self._in_blocks(patches, order, columns)
        return self._in_prompt({**arrays, "places": np.argsort(order).astype(np.int32)}, rows, columns)
