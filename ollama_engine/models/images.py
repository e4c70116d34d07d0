"""Bases of models that read images: a text model with a vision part, and how prompts with images are rewritten."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, Protocol

from ollama_engine import nn
from ollama_engine.input import FloatArray, Input, MediaItem, MediaTraits, PreparedImage
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.base import Multimodal
from ollama_engine.models.transformer import Transformer

if TYPE_CHECKING:
    from PIL.Image import Image

    from ollama_engine.ml.graph.context import Context

__all__ = ["ImageReader", "ImageTokens", "Preparation", "encode_tiles", "input_ids", "rows_of"]

TILES_AT_ONCE = 6
"""Tiles that share a run of the layers. All 17 of a largest image take more than twice the memory, and gain no time."""


class ImageReader(Transformer):
    """Stands before a text model among a class's bases: `multimodal` is the vision part, None in a file without."""

    vision_tensor: ClassVar[str]
    """A tensor that every file with a vision part has."""
    vision_part: ClassVar[Callable[..., Multimodal]]
    """Its class: (metadata, scope of all weights with the options of the text model) -> the part."""

    def __init__(self, metadata: Metadata, weights: Mapping[str, Tensor]) -> None:
        super().__init__(metadata, weights)
        self.multimodal: Multimodal | None = None
        if self.vision_tensor in weights:
            scope = nn.Scope(weights, self.options)
            self.multimodal = type(self).vision_part(metadata, scope)
            self.unused_weights = tuple(name for name in self.unused_weights if name not in scope.used)


class Preparation(Protocol):
    """Makes the arrays that a vision part reads; see `ImageTower` for both."""

    def prepare(self, image: Image) -> PreparedImage:
        """A picture, RGB or RGBA."""

    def largest(self) -> PreparedImage:
        """The image whose graph takes the most memory."""


class ImageTokens:
    """Implements `models.Multimodal` but for its graph and, in `image_inputs`, how an image is written."""

    placeholder: str

    def __init__(self, preparation: Preparation) -> None:
        self._preparation = preparation

    @property
    def traits(self) -> MediaTraits:
        """Rows of an image attend to those before them only, as text does, so any cut into batches will do."""
        return MediaTraits()

    def preprocess(self, image: Image) -> PreparedImage:
        """Arrays of a picture, RGB or RGBA; the family's `Preprocessor` says which."""
        return self._preparation.prepare(image)

    def largest_image(self) -> PreparedImage:
        """See `Preparation.largest`."""
        return self._preparation.largest()

    def encode_multimodal(self, ctx: Context, image: PreparedImage) -> Tensor:
        """The graph of the vision part: f32 [n_embd, n_inputs]."""
        raise NotImplementedError

    def post_tokenize(self, inputs: list[Input]) -> list[Input]:
        """Replace each image by all its inputs."""
        written: list[Input] = []
        for given in inputs:
            written += [given] if given.media is None else self.image_inputs(given.media)
        return written

    def image_inputs(self, item: MediaItem) -> list[Input]:
        """The rows of an image, and the tokens between and around them."""
        raise NotImplementedError


def rows_of(item: MediaItem, token: int) -> list[Input]:
    """An input for each row of an image or a part of it; `token` stands where the embeddings are."""
    return [Input(token, item), *[Input(token)] * (item.n_inputs - 1)]


def input_ids(scope: nn.Scope) -> int:
    """Rows of the token embedding: ids of tokens around images are below."""
    return scope.weights["token_embd.weight"].dim(1)


def encode_tiles(ctx: Context, tiles: FloatArray, encode: Callable[[Tensor], Tensor]) -> Tensor:
    """The embeddings of an image's tiles, one after the other, f32 [n_embd, rows].

    Args:
        ctx: the graph.
        tiles: f32 [tiles, patches, numbers of a patch].
        encode: patches f32 [numbers of a patch, patches, tiles] -> embeddings f32 [n_embd, rows].
    """
    out: Tensor | None = None
    for begin in range(0, len(tiles), TILES_AT_ONCE):
        some = tiles[begin : begin + TILES_AT_ONCE]
        x = encode(ctx.from_floats(some, (some.shape[2], some.shape[1], len(some))))
        out = x if out is None else ops.concat(out, x, 1)
    assert out is not None, "an image has a tile"
    return out
