"""Llama 3.2 Vision as the engine loads it: the text part, and the vision tower where the file has one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ollama_engine.errors import ModelFormatError
from ollama_engine.input import Input, MediaTraits, PreparedImage
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.dialects import BOS
from ollama_engine.models.mllama.options import VisionOptions, read_vision
from ollama_engine.models.mllama.preprocess import prepare, preprocess
from ollama_engine.models.mllama.text import MllamaText
from ollama_engine.models.mllama.vision import Vision

if TYPE_CHECKING:
    from PIL.Image import Image


class MllamaImages:
    """Implements `models.Multimodal`. An image is one token; its embeddings stand beside the text."""

    placeholder = "<|image|>"

    def __init__(self, vision: Vision, token: int, bos: int | None) -> None:
        self.vision = vision
        self.token = token
        self._bos = bos

    @property
    def traits(self) -> MediaTraits:
        """An image is one input. A batch has two new ones at most: each more takes its rows of memory at start."""
        return MediaTraits(largest_group=1, groups_per_batch=2)

    def preprocess(self, image: Image) -> PreparedImage:
        """Tiles of patches; see `preprocess`."""
        return preprocess(image, self.vision.options)

    def post_tokenize(self, inputs: list[Input]) -> list[Input]:
        """The image's token at the place of each image.

        Images at the very beginning stand before the token that begins a text, as MllamaProcessor of transformers has
        it; so that token sees them.
        """
        written = [given if given.media is None else replace(given, token=self.token) for given in inputs]
        if written and written[0].media is None and written[0].token == self._bos:
            n = next((i for i, given in enumerate(written[1:]) if given.media is None), len(written) - 1)
            written[: n + 1] = [*written[1 : n + 1], written[0]]
        return written

    def encode_multimodal(self, ctx: Context, image: PreparedImage) -> Tensor:
        """Embeddings f32 [n_embd, rows] of the tiles that have pixels."""
        return self.vision.forward(ctx, image)

    def largest_image(self) -> PreparedImage:
        """A picture with as many tiles as there can be, side by side."""
        return self._row_of(self.vision.options.max_tiles)

    def smaller_images(self) -> Iterator[PreparedImage]:
        """Pictures with fewer tiles. The tower fills them up, and its padding attends apart."""
        return map(self._row_of, range(1, self.vision.options.max_tiles))

    def _row_of(self, n_tiles: int) -> PreparedImage:
        o: VisionOptions = self.vision.options
        pixels = np.zeros((o.n_channels, o.tile_size, o.tile_size * n_tiles), dtype=np.float32)
        return prepare(pixels, (1, n_tiles), o)


class Mllama(MllamaText):
    """Llama 3.2 Vision. A file without a vision tower gives a model that only writes."""

    architecture = "mllama"

    def __init__(self, metadata: Metadata, weights: Mapping[str, Tensor]) -> None:
        super().__init__(metadata, weights)
        self.image_rows = 1
        self.multimodal: MllamaImages | None = None
        if "v.patch_embd.weight" in weights:
            vision = Vision(weights, read_vision(metadata))
            self.image_rows = vision.options.image_rows
            bos = metadata.u32(BOS, None)
            self.multimodal = MllamaImages(vision, self._image_token(metadata), bos)
            self.unused_weights = tuple(name for name in self.unused_weights if name not in vision.used_weights)

    def _image_token(self, metadata: Metadata) -> int:
        """The id of the image's token: the first that is no logit, unless the file says another."""
        token = metadata.u32("image_token_id", self.n_vocab)
        if token >= self.n_input_ids:
            raise ModelFormatError(
                f"{metadata.key('image_token_id')} is {token}, but the token embedding has {self.n_input_ids} rows"
            )
        return token
