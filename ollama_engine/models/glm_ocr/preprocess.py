"""Pictures for GLM-OCR, as transformers' Glm46VImageProcessor makes them: patches block by block."""

from __future__ import annotations

from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.qwen25vl.blocks import BlockOptions, BlockPreprocessor
from ollama_engine.multimodal.pixels import CLIP_MEAN, CLIP_STD

LIMITS = 112 * 112, 28 * 28 * 15_000
"""Least and most pixels of the published processor, of both frames."""


class Preprocessor(BlockPreprocessor):
    frames = 2

    def __init__(self, metadata: Metadata, options: BlockOptions) -> None:
        super().__init__(metadata, options, limits=LIMITS, mean=CLIP_MEAN, std=CLIP_STD)

    def size(self, height: int, width: int, max_pixels: int | None = None) -> tuple[int, int]:
        """As in the base class, but a picture that is smaller than a block is enlarged first."""
        shorter = min(height, width)
        if shorter < self.side:
            height, width = (int(n * (self.side / shorter)) for n in (height, width))
        return super().size(height, width, max_pixels)
