"""A llama that reads images, for tests of the way from prompts to batches. Not in the product.

    with media_llama(bidirectional=True):
        ...  # every llama file that is loaded here is such a model

An "image" is bytes. Its embeddings are those of the tokens that the bytes name, so that an image, seen causally, means
what these tokens mean. In the prompt it is BEGIN, then one input for each byte, then END.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np

from ollama_engine import nn
from ollama_engine.errors import ImageError
from ollama_engine.input import FloatArray, Input, MediaItem, MediaTraits
from ollama_engine.kvcache import LayerShape, LayerView
from ollama_engine.ml import ops
from ollama_engine.ml.metadata import Metadata
from ollama_engine.ml.tensor import Tensor
from ollama_engine.models import ModelInputs, registry
from ollama_engine.models.llama import Llama

BEGIN, PLACEHOLDER, END = 10, 11, 12
IMAGE_ROWS = 4


def seen_as(data: bytes) -> list[int]:
    """The tokens that say the same as an image."""
    return [BEGIN, *data, END]


class MediaLlama(Llama):
    """Made with the traits of the enclosing `media_llama`."""

    traits: ClassVar[MediaTraits] = MediaTraits()
    grouped: ClassVar[bool] = True
    wide: ClassVar[bool] = False
    """Whether an image takes one position on the first axis, as those of Qwen2-VL do in time."""
    window: ClassVar[int | None] = None
    encoded: ClassVar[list[bytes]] = []
    """Images whose embeddings were asked for, by content."""

    def __init__(self, metadata: Metadata, weights: Mapping[str, Tensor]) -> None:
        super().__init__(metadata, weights)
        self._table = weights["token_embd.weight"].numpy().copy()

    @property
    def cache_layers(self) -> tuple[LayerShape, ...]:
        return tuple(
            replace(shape, window=self.window if i % 2 == 0 else None) for i, shape in enumerate(super().cache_layers)
        )

    @property
    def media_traits(self) -> MediaTraits:
        return self.traits

    def media_item(self, data: bytes) -> MediaItem:
        if not data:
            raise ImageError("an image has at least one byte")

        def embeddings() -> FloatArray:
            if b"broken" in data:
                raise ImageError("the image is broken")
            self.encoded.append(data)
            return self._table[list(data)].astype(np.float32)

        n, digest = len(data), int.from_bytes(hashlib.sha256(data).digest()[:8], "little")
        positions = None
        if self.wide:
            positions = np.tile(np.arange(n, dtype=np.int32), (self.traits.position_axes, 1))
            positions[0] = 0
        return MediaItem(digest, n, embeddings, positions, 1 if self.wide else None)

    def post_tokenize(self, inputs: list[Input]) -> list[Input]:
        found: list[Input] = []
        for given in inputs:
            if given.media is None:
                found.append(given)
                continue
            n = given.media.n_inputs
            # With cross-attention END belongs to the group, so that images keep apart: one batch stores one.
            following = n if given.media.cross_attention else n - 1
            first = Input(PLACEHOLDER, given.media, following if self.grouped else 0)
            found += [Input(BEGIN), first, *[Input(PLACEHOLDER)] * (n - 1), Input(END)]
        return found

    def hidden(self, inputs: ModelInputs, cache: LayerView) -> Tensor:
        if self.traits.position_axes > 1:
            n = inputs.tokens.dim(0)
            inputs = replace(inputs, positions=ops.view(inputs.positions, (n,), (), 0))
        return super().hidden(inputs, cache)


class CrossLlama(MediaLlama):
    """Beside that: a last layer that attends to the latest image, whose embeddings are never rows of the text."""

    @property
    def cache_layers(self) -> tuple[LayerShape, ...]:
        shapes = super().cache_layers
        return (*shapes, replace(shapes[0], window=None, image_rows=IMAGE_ROWS))

    def media_item(self, data: bytes) -> MediaItem:
        item = super().media_item(data)

        def embeddings() -> FloatArray:
            return np.resize(item.embeddings(), (IMAGE_ROWS, self.n_embd))

        return replace(item, n_inputs=1, embeddings=embeddings, cross_attention=True)

    def hidden(self, inputs: ModelInputs, cache: LayerView) -> Tensor:
        o = self.options
        x = self.through_layers(self.embed_inputs(inputs), replace(inputs, outputs=None), cache)
        cache.set_layer(o.n_layer)
        images: Any = cache.current  # type: ignore[attr-defined]
        if inputs.images is not None:
            shape = (o.head_dim, o.n_head_kv, inputs.images.dim(1))
            rows = ops.cont(ops.view(inputs.images, shape, (o.head_dim * 4, inputs.images.stride(1)), 0))
            cache.put(rows, rows)
        if images.sees_images:
            query = ops.reshape(x, o.head_dim, o.n_head, x.dim(1))
            x = x + nn.attention(query, cache, o.attention_scale) * images.gate
        if inputs.outputs is not None:
            x = ops.get_rows(x, inputs.outputs)
        return self.output_norm(x, o.norm_eps)


@contextmanager
def media_llama(cls: type[MediaLlama] = MediaLlama, **options: Any) -> Iterator[None]:
    """Load llama files as models that read images. Options: `grouped`, `wide`, `window`, and fields of MediaTraits."""
    own = {name: options.pop(name) for name in ("grouped", "wide", "window") if name in options}
    traits = MediaTraits(**{"largest_group": 24, **options})
    with (
        patch.multiple(MediaLlama, traits=traits, encoded=[], **own),
        patch.dict(registry._BUILT_IN, {"llama": f"tests.media_model:{cls.__name__}"}),
    ):
        yield
