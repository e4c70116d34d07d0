"""A llama that reads images, for tests of the way from prompts to batches. Not in the product.

    with media_llama(bidirectional=True):
        ...  # every llama file that is loaded here is such a model

An image is a row of grey pixels, `picture(bytes)`. Its embeddings are those of the tokens that the pixels name, so that
an image, seen causally, means what these tokens mean. In the prompt it is BEGIN, then one input for each pixel, then
END.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, ClassVar
from unittest.mock import patch

import numpy as np
import PIL.Image

from ollama_engine import nn
from ollama_engine.errors import ImageError
from ollama_engine.input import Input, MediaTraits, PreparedImage
from ollama_engine.kvcache import LayerShape, LayerView
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models import ModelInputs, registry
from ollama_engine.models.llama import Llama
from tests.support.tiny import write_tiny_llama

if TYPE_CHECKING:
    from PIL.Image import Image

    from ollama_engine.ml.graph.context import Context

BEGIN, PLACEHOLDER, END = 10, 11, 12
IMAGE_ROWS = 4
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}{{ '<image>' }}{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}"
)
"""A chat template that knows image parts."""
BROKEN = b"broken"
"""The pixels of an image whose vision graph cannot be built."""
REFUSED = b"refused"
"""The pixels of an image that the model cannot take."""


@lru_cache(1000)
def picture(pixels: bytes) -> bytes:
    """A PNG file with one row of grey pixels."""
    file = io.BytesIO()
    PIL.Image.fromarray(np.frombuffer(pixels, np.uint8)[None]).save(file, "PNG")
    return file.getvalue()


def seen_as(pixels: bytes) -> list[int]:
    """The tokens that say the same as an image."""
    return [BEGIN, *pixels, END]


class FakeVision:
    """A vision tower that looks pixels up in the token table."""

    placeholder = "<image>"
    cross_attention = False

    def __init__(self, model: MediaLlama) -> None:
        self.model = model

    @property
    def traits(self) -> MediaTraits:
        return self.model.traits

    def preprocess(self, image: Image) -> PreparedImage:
        pixels = np.asarray(image)[:, :, 0].ravel().astype(np.int32)
        if bytes(pixels.astype(np.uint8)) == REFUSED:
            raise ImageError("the model cannot take this image")
        self.model.prepared.append(bytes(pixels.astype(np.uint8)))
        n, positions = len(pixels), None
        if self.model.wide:
            positions = np.tile(np.arange(n, dtype=np.int32), (self.traits.position_axes, 1))
            positions[0] = 0
        return PreparedImage(
            {"pixels": pixels}, 1 if self.cross_attention else n, (1, n), positions, 1 if self.model.wide else None,
            self.cross_attention,
        )  # fmt: skip

    def post_tokenize(self, inputs: list[Input]) -> list[Input]:
        found: list[Input] = []
        for given in inputs:
            if given.media is None:
                found.append(given)
                continue
            n = given.media.n_inputs
            # With cross-attention END belongs to the group: images keep apart, none sees another.
            following = n if given.media.cross_attention else n - 1
            first = Input(PLACEHOLDER, given.media, following if self.model.grouped else 0)
            found += [Input(BEGIN), first, *[Input(PLACEHOLDER)] * (n - 1), Input(END)]
        return found

    def encode_multimodal(self, ctx: Context, image: PreparedImage) -> Tensor:
        pixels = image.arrays["pixels"]
        content = bytes(pixels.astype(np.uint8))
        if content == BROKEN:
            raise ImageError("the image is broken")
        self.model.encoded.append(content)
        if self.cross_attention:
            pixels = np.resize(pixels, IMAGE_ROWS)
        return ops.get_rows(self.model.table, ctx.from_ints(pixels))

    def largest_image(self) -> PreparedImage:
        n = max(1, self.traits.largest_group)
        return PreparedImage({"pixels": np.zeros(n, np.int32)}, 1 if self.cross_attention else n)


class FakeCrossVision(FakeVision):
    """Beside the text: an image has one input, and its embeddings have IMAGE_ROWS rows."""

    cross_attention = True


class MediaLlama(Llama):
    """Made with the traits of the enclosing `media_llama`."""

    vision: ClassVar[type[FakeVision]] = FakeVision
    traits: ClassVar[MediaTraits] = MediaTraits()
    grouped: ClassVar[bool] = True
    wide: ClassVar[bool] = False
    """Whether an image takes one position on the first axis, as those of Qwen2-VL do in time."""
    window: ClassVar[int | None] = None
    prepared: ClassVar[list[bytes]] = []
    """The pixels of images that were prepared."""
    encoded: ClassVar[list[bytes]] = []
    """The pixels of images that were encoded."""

    def __init__(self, metadata: Metadata, weights: Mapping[str, Tensor]) -> None:
        super().__init__(metadata, weights)
        self.table = weights["token_embd.weight"]
        self.multimodal = self.vision(self)

    @property
    def cache_layers(self) -> tuple[LayerShape, ...]:
        return tuple(
            replace(shape, window=self.window if i % 2 == 0 else None) for i, shape in enumerate(super().cache_layers)
        )

    def hidden(self, inputs: ModelInputs, cache: LayerView) -> Tensor:
        if self.traits.position_axes > 1:
            n = inputs.tokens.dim(0)
            inputs = replace(inputs, positions=ops.view(inputs.positions, (n,), (), 0))
        return super().hidden(inputs, cache)


class CrossLlama(MediaLlama):
    """Beside that: a last layer that attends to the latest image, whose embeddings are never rows of the text."""

    vision = FakeCrossVision

    @property
    def cache_layers(self) -> tuple[LayerShape, ...]:
        shapes = super().cache_layers
        return (*shapes, replace(shapes[0], window=None, image_rows=IMAGE_ROWS))

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
def held_encoding(patience: float) -> Iterator[tuple[Event, Event]]:
    """Events: an image begins to be encoded; it may go on, which it waits for as many seconds as `patience`."""
    encoding, go_on = Event(), Event()
    original = FakeVision.encode_multimodal

    def encode(self: FakeVision, ctx: Context, prepared: PreparedImage) -> Tensor:
        encoding.set()
        assert go_on.wait(patience)
        return original(self, ctx, prepared)

    with patch.object(FakeVision, "encode_multimodal", encode):
        yield encoding, go_on


@contextmanager
def media_llama(cls: type[MediaLlama] = MediaLlama, **options: Any) -> Iterator[None]:
    """Load llama files as models that read images. Options: `grouped`, `wide`, `window`, and fields of MediaTraits."""
    own = {name: options.pop(name) for name in ("grouped", "wide", "window") if name in options}
    traits = MediaTraits(**{"largest_group": 24, **options})
    with (
        patch.multiple(MediaLlama, traits=traits, prepared=[], encoded=[], **own),
        patch.dict(registry._BUILT_IN, {"llama": f"tests.support.media_model:{cls.__name__}"}),
    ):
        yield


@contextmanager
def seeing_model(folder: Path, *names: str) -> Iterator[str]:
    """The path of a tiny model that reads images, while it does, and image files of these names beside it."""
    for number, name in enumerate(names):
        (folder / name).write_bytes(picture(bytes(range(40 + number, 52 + number))))
    with media_llama():
        yield write_tiny_llama(
            folder / "seeing.gguf", n_layer=1, seed=4, metadata={"tokenizer.chat_template": TEMPLATE}
        ).path
