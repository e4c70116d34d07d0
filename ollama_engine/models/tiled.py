"""Models that read pictures in tiles of one size: CLIP's or SigLIP's tower reads each tile alone.

Squares of patches are joined behind it (pixel shuffle, Shi et al. 2016), and projected to embeddings of the text model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from ollama_engine.input import FloatArray, Input, MediaItem, PreparedImage
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.images import ImageTokens, Preparation, encode_tiles, input_ids, rows_of
from ollama_engine.models.media_tokens import token_id, token_named
from ollama_engine.multimodal.pixels import normalized, unfold
from ollama_engine.nn import clip, vision

if TYPE_CHECKING:
    from PIL.Image import Image

    from ollama_engine.ml.graph.context import Context

__all__ = [
    "GeluProjector",
    "TileTokens",
    "TiledMultimodal",
    "TiledOptions",
    "TiledPart",
    "TiledPreparation",
    "read_merging",
    "read_tiled",
]


PROJECTOR_EPS = 1e-5
"""torch's default, which published projectors have."""


@dataclass(frozen=True, kw_only=True)
class TiledOptions(clip.ClipOptions):
    merge: int
    """Side of the square of patches that becomes one embedding."""
    n_text: int
    """Length of an embedding of the text model."""

    @property
    def n_merged(self) -> int:
        """Length of the joined patches of a square."""
        return self.n_embd * self.merge**2

    @property
    def n_tokens(self) -> int:
        """Embeddings of a tile."""
        return (self.grid // self.merge) ** 2


def read_merging(metadata: Metadata, scope: nn.Scope, activation: str) -> dict[str, Any]:
    """The fields of TiledOptions; `scope`: all weights, with the options of the text model.

    `activation` is the tower's where the file does not say. Raises ModelFormatError, UnsupportedModelError.
    """
    tower = clip.read_clip(metadata, scope.below("v"), activation)
    merge = metadata.u32("vision.projector.scale_factor", 2)
    if merge < 1:
        raise ModelFormatError(f"{metadata.key('vision.projector.scale_factor')} is {merge}; expected at least 1")
    return {**asdict(tower), "merge": merge, "n_text": scope.options.n_embd}


def read_tiled(metadata: Metadata, scope: nn.Scope, activation: str = "gelu_tanh") -> TiledOptions:
    """Options of a part whose tiles are as large as the tower's pictures; see `read_merging`."""
    options = TiledOptions(**read_merging(metadata, scope, activation))
    if options.grid % options.merge:
        raise ModelFormatError(
            f"{metadata.key('vision.projector.scale_factor')} is {options.merge}; expected a divisor of "
            f"{options.grid}, the patches along a side (vision.image_size / vision.patch_size)"
        )
    side = metadata.u32("vision.tile_size", options.image_size)
    if side != options.image_size:
        raise UnsupportedModelError(
            f"the image processor makes tiles of {side} pixels, and the tower is for {options.image_size}"
        )
    return options


class TiledPreparation:
    """Implements `Preparation` but for how a picture is cut: array `tiles`, f32 [n, patches, 3 * patch_size^2]."""

    MEAN: ClassVar[Sequence[float]] = (0.5,) * 3
    STD: ClassVar[Sequence[float]] = (0.5,) * 3
    """Those of all published models, for files that do not say."""

    def __init__(self, metadata: Metadata, options: TiledOptions) -> None:
        self.options = options
        self.mean, self.std = vision.read_normalization(metadata, self.MEAN, self.STD)

    def prepared(self, tiles: Sequence[Image], grid: tuple[int, int]) -> PreparedImage:
        """The tiles of a picture, RGB; `grid`: (rows, columns)."""
        return self._of(self.patches(tiles), grid)

    def patches(self, pictures: Sequence[Image], *, fused: bool = False) -> FloatArray:
        """Pictures of one size, f32 [n, patches, 3 * patch_size^2]. `fused`: see `normalized`."""
        pixels = [normalized(picture, self.mean, self.std, fused=fused) for picture in pictures]
        return np.stack([unfold(each, self.options.patch_size) for each in pixels]) if pixels else self.blank(0, 0)

    def blank(self, n: int, n_patches: int) -> FloatArray:
        """As many pictures of zeros, of as many patches."""
        return np.zeros((n, n_patches, self.options.n_channels * self.options.patch_size**2), np.float32)

    def zeros(self, n_tiles: int, grid: tuple[int, int]) -> PreparedImage:
        """A picture of so many tiles."""
        return self._of(self.blank(n_tiles, self.options.n_patches), grid)

    def _of(self, tiles: FloatArray, grid: tuple[int, int]) -> PreparedImage:
        return PreparedImage({"tiles": tiles}, n_inputs=len(tiles) * self.options.n_tokens, grid=grid)


class GeluProjector(nn.Module):
    """Joined patches to embeddings of the text model: a norm, then two products with the exact form of GELU between."""

    norm = nn.LayerNorm("0", "n_merged")
    first = nn.Linear("1", "n_merged", "n_text")
    second = nn.Linear("3", "n_text", "n_text")

    def forward(self, x: Tensor, o: TiledOptions) -> Tensor:
        """x [n_merged, n] -> f32 [n_text, n]."""
        x = self.norm(x, PROJECTOR_EPS) if self.norm else x
        x = clip.activate("gelu", self.first.tensor, x, self.first.bias)
        return vision.wide_product(self.second.tensor, x, self.second.bias)


class TiledPart(nn.Module):
    """Everything that a file has for reading images; a family adds its `projector`."""

    tower = nn.Part(clip.ClipTower, "v")
    projector: Any
    """A module whose `forward` makes embeddings f32 [n_text, n] of joined patches [n_merged, n]."""

    def forward(
        self, patches: Tensor, o: TiledOptions, places: Tensor | None = None, columns: int | None = None
    ) -> Tensor:
        """Patches f32 [channels * patch_size^2, n_patches, tiles] -> f32 [n_text, n_patches / merge^2 * tiles].

        For tiles that are no squares of the tower's size: `places` as in `ClipTower.embed`, `columns` of patches.
        """
        (x,) = self.tower.forward(patches, o, [o.n_layer], places)
        if self.tower.post_norm:
            x = self.tower.post_norm(x, o.norm_eps)
        if o.class_token:
            x = ops.cont(ops.view(x, (o.n_embd, o.n_patches, x.dim(2)), (x.stride(1), x.stride(2)), x.stride(1)))
        out: Tensor = self.projector.forward(vision.join_squares(x, columns or o.grid, o.merge), o)
        return out


class TileTokens(ImageTokens):
    """Tokens of images in tiles, which are looked up when an image is read: models of random weights have none."""

    image_token: ClassVar[str]
    """Stands where an embedding is."""

    def __init__(self, metadata: Metadata, scope: nn.Scope, n_tokens: int, preparation: Preparation) -> None:
        """`scope`: all weights of the file; `n_tokens`: embeddings of a tile."""
        super().__init__(preparation)
        self._metadata = metadata
        self._n_ids = input_ids(scope)
        self._n_tokens = n_tokens
        self._ids: dict[str, int] = {}

    def token(self, text: str) -> Input:
        """The token `text`. Raises ModelFormatError where the file lacks it."""
        if text not in self._ids:
            self._ids[text] = token_named(self._metadata, text, self._n_ids)
        return Input(self._ids[text])

    def tiles(self, item: MediaItem, begin: int, end: int) -> list[Input]:
        """The embeddings of tiles [begin, end)."""
        return self.rows(item, begin * self._n_tokens, end * self._n_tokens)

    def rows(self, item: MediaItem, begin: int, end: int) -> list[Input]:
        """The embeddings [begin, end). All parts of an image share one encoding."""
        return rows_of(item.part(begin, end), self._image_id)

    @cached_property
    def _image_id(self) -> int:
        return token_id(self._metadata, "image_token_id", self.image_token, self._n_ids)


class TiledMultimodal(TileTokens):
    """Implements `models.Multimodal` for a `TiledPart`, but for how an image is written."""

    part: ClassVar[type[TiledPart]]
    preparation: ClassVar[Callable[..., Preparation]]
    """(metadata, options) -> what makes its arrays."""
    read_options: ClassVar[Callable[..., TiledOptions]]
    """(metadata, scope of all weights, with the options of the text model) -> the options."""

    def __init__(self, metadata: Metadata, scope: nn.Scope) -> None:
        """`scope`: all weights of the file, with the options of the text model."""
        cls = type(self)
        self.options = options = cls.read_options(metadata, scope)
        super().__init__(metadata, scope, options.n_tokens, cls.preparation(metadata, options))
        self.vision = self.part(nn.Scope(scope.weights, options, used=scope.used))

    def encode_multimodal(self, ctx: Context, image: PreparedImage) -> Tensor:
        """The graph of the vision part: f32 [n_embd, n_inputs], tile after tile."""
        return self.encode(ctx, image, "tiles")

    def encode(self, ctx: Context, image: PreparedImage, name: str, columns: int | None = None) -> Tensor:
        """The embeddings of one array; see `TiledPart.forward`."""
        places = image.arrays.get(f"{name}_places")
        given = None if places is None else ctx.from_floats(places)
        pixels = np.asarray(image.arrays[name], np.float32)
        return encode_tiles(ctx, pixels, lambda patches: self.vision.forward(patches, self.options, given, columns))
