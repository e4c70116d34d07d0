"""Pictures for Gemma 3, as transformers' Gemma3ImageProcessor makes them: a square of one size, whatever the picture's.

Pan and scan, which cuts long pictures into several, is off in the published configuration, and is not done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ollama_engine.input import PreparedImage
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.gemma3.vision import VisionOptions
from ollama_engine.multimodal.image import on_white
from ollama_engine.multimodal.pixels import normalized, unfold
from ollama_engine.multimodal.resampling import BILINEAR
from ollama_engine.nn.vision import read_normalization

if TYPE_CHECKING:
    from PIL.Image import Image


class Preprocessor:
    """Resize to a square (bilinear), normalize, cut into patches: array `patches`, f32 [n, 3 * patch_size^2]."""

    def __init__(self, metadata: Metadata, options: VisionOptions) -> None:
        self.options = options
        self.mean, self.std = read_normalization(metadata, [0.5] * 3, [0.5] * 3)

    def prepare(self, image: Image) -> PreparedImage:
        """A picture of any size, RGB or RGBA; transparent pixels become white."""
        side = self.options.image_size
        resized = on_white(image).resize((side, side), BILINEAR)
        return self._prepared(unfold(normalized(resized, self.mean, self.std), self.options.patch_size))

    def largest(self) -> PreparedImage:
        """All pictures come to the same size."""
        o = self.options
        return self._prepared(np.zeros((o.n_places, o.n_channels * o.patch_size**2), np.float32))

    def _prepared(self, patches: np.ndarray) -> PreparedImage:
        return PreparedImage({"patches": patches}, n_inputs=self.options.n_tokens)
