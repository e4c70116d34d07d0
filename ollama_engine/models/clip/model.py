"""CLIP and SigLIP: `general.architecture` = clip-dual and siglip-dual; of images alone, clip-vision and siglip-vision.

Two encoders, one of texts and one of images, make vectors of one space; SigLIP's texts are padded to 64 tokens, which
attend to each other. llama.cpp has no such files: "clip" is the name of its projectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ollama_engine import nn
from ollama_engine.errors import UnsupportedModelError
from ollama_engine.input import PreparedImage
from ollama_engine.kvcache import LayerShape, LayerView
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.base import ModelInputs
from ollama_engine.models.clip.preprocess import Preprocessor
from ollama_engine.models.clip.text import TextHalf
from ollama_engine.models.clip.vision import ClassVector, Head, HeadOptions, PooledVector, read_head_options

if TYPE_CHECKING:
    from PIL.Image import Image

    from ollama_engine.ml.graph.context import Context


class ImageVectorTower:
    """Implements `models.ImageTower`: one row for an image."""

    def __init__(self, metadata: Metadata, scope: nn.Scope, options: HeadOptions, part: type[Head]) -> None:
        self.options = options
        self.part = part(nn.Scope(scope.weights, options, used=scope.used))
        self._preprocessor = Preprocessor(metadata, options)

    def preprocess(self, image: Image) -> PreparedImage:
        """Array `patches` of a picture, RGB or RGBA."""
        return self._preprocessor.prepare(image)

    def largest_image(self) -> PreparedImage:
        """All images have one size."""
        o = self.options
        patches = np.zeros((o.n_patches, o.n_channels * o.patch_size**2), np.float32)
        return PreparedImage({"patches": patches}, n_inputs=1)

    def encode_multimodal(self, ctx: Context, image: PreparedImage) -> Tensor:
        """The graph of the tower and its head: f32 [n_vector, 1]."""
        return self.part.forward(ctx.from_floats(image.arrays["patches"]), self.options)


class ClipVision:
    """CLIP's images: the class token, projected. Implements `models.EmbedsImages`."""

    architecture: ClassVar[str] = "clip-vision"
    part: ClassVar[type[Head]] = ClassVector

    n_vocab = n_input_ids = 0
    context_length = 1
    cache_layers: tuple[LayerShape, ...] = ()

    def __init__(self, metadata: Metadata, weights: Mapping[str, Tensor]) -> None:
        scope = nn.Scope(weights, None)
        options = read_head_options(metadata, scope)
        self.image_tower = ImageVectorTower(metadata, scope, options, self.part)
        self.unused_weights = tuple(sorted(set(weights) - scope.used))

    @property
    def n_image_embd(self) -> int:
        """Length of an image's vector."""
        return self.image_tower.options.n_vector

    def forward(self, inputs: ModelInputs, cache: LayerView) -> Tensor:
        """Raises UnsupportedModelError."""
        raise UnsupportedModelError(f"{self.architecture} reads no text")


class SiglipVision(ClipVision):
    """SigLIP's images: all patches, pooled by attention."""

    architecture = "siglip-vision"
    part = PooledVector


class ClipDual(TextHalf):
    """CLIP with both halves. Implements `models.EmbedsImages`."""

    architecture = "clip-dual"
    part: ClassVar[type[Head]] = ClassVector

    def __init__(self, metadata: Metadata, weights: Mapping[str, Tensor]) -> None:
        super().__init__(metadata, weights)
        scope = nn.Scope(weights, None)
        self.image_tower = ImageVectorTower(metadata, scope, read_head_options(metadata, scope), self.part)
        self.unused_weights = tuple(name for name in self.unused_weights if name not in scope.used)

    @property
    def n_image_embd(self) -> int:
        """Length of an image's vector."""
        return self.n_vector


class SiglipDual(ClipDual):
    """SigLIP with both halves."""

    architecture = "siglip-dual"
    part = PooledVector
