"""Pictures for CLIP and SigLIP, as transformers' processors make them: squares of one size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ollama_engine.errors import UnsupportedModelError
from ollama_engine.input import PreparedImage
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.multimodal.image import on_white
from ollama_engine.multimodal.pixels import CLIP_MEAN, CLIP_STD, normalized, unfold
from ollama_engine.multimodal.resampling import FILTERS
from ollama_engine.multimodal.squares import FITS, square
from ollama_engine.nn.clip import ClipOptions
from ollama_engine.nn.vision import read_normalization

if TYPE_CHECKING:
    from PIL.Image import Image


class Preprocessor:
    """Array `patches`, f32 [n_patches, 3 * patch_size^2]. Our converter always says what the processor does."""

    def __init__(self, metadata: Metadata, options: ClipOptions) -> None:
        self.options = options
        self.mean, self.std = read_normalization(metadata, CLIP_MEAN, CLIP_STD)
        self.fit = metadata.str("vision.image_aspect_ratio", "crop")
        self.filter = metadata.str("vision.image_resample", "bicubic")
        if self.fit not in FITS or self.filter not in FILTERS:
            raise UnsupportedModelError(
                f"{metadata.key('vision.image_aspect_ratio')} is {self.fit!r} and image_resample {self.filter!r}; "
                f"supported: {', '.join(FITS)}; {', '.join(FILTERS)}"
            )

    def prepare(self, image: Image) -> PreparedImage:
        """A picture of any size, RGB or RGBA."""
        o = self.options
        pixels = normalized(
            square(on_white(image), o.image_size, self.fit, self.filter, self.mean), self.mean, self.std
        )
        return PreparedImage({"patches": unfold(pixels, o.patch_size)}, n_inputs=1)
