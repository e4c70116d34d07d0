"""DeepSeek-OCR's vision part: SAM's tower, and behind it the blocks of CLIP's, which read what that one wrote.

Hidden states of both, joined, are projected to embeddings of the text model. Tensors are named as in llama.cpp's files.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.deepseek_ocr.sam import FusedTowerAttention, SamOptions, SamTower
from ollama_engine.models.deepseek_ocr.stretching import stretched
from ollama_engine.models.qwen25vl.vision import PlainMLP
from ollama_engine.nn import clip, vision

SAM_EPS, ENCODER_EPS = 1e-6, 1e-5
"""Constants of the published code; llama.cpp's files have the first for both."""
PATCHES_OF_ONE = 4
"""Side of the square of patches that becomes one embedding."""


@dataclass(frozen=True, kw_only=True)
class VisionOptions(vision.TowerOptions):
    """Sizes of the encoder behind SAM's tower."""

    sam: SamOptions
    grid: int
    """Side of its table of position embeddings."""
    tile: int
    """Side of a tile in pixels."""
    n_text: int
    """Length of an embedding of the text model."""

    @property
    def n_places(self) -> int:
        """Rows of the table: the class token, and the places of the grid."""
        return self.grid**2 + 1

    @property
    def n_embd_thrice(self) -> int:
        """Rows of a matrix of queries, keys and values."""
        return 3 * self.n_embd

    @property
    def n_joined(self) -> int:
        """Length of both hidden states."""
        return self.n_embd + self.sam.n_out


def read_options(metadata: Metadata, scope: nn.Scope) -> VisionOptions:
    """Options of the vision part; `scope`: all weights, with the options of the text model. Raises ModelFormatError.

    Sizes that few files say, or wrongly, are those of the weights.
    """
    sam = _read_sam(metadata, scope)
    n_ff, n_places = (_size(scope, name, 1) for name in ("v.blk.0.ffn_up", "v.position_embd"))
    tower = {**vision.read_tower(metadata, eps=ENCODER_EPS, n_ff=n_ff), "norm_eps": ENCODER_EPS}
    grid = math.isqrt(n_places - 1)
    tile, block = metadata.u32("vision.tile_size", 640), sam.patch_size * PATCHES_OF_ONE
    if grid**2 + 1 != n_places or tower["n_embd"] != sam.n_out:
        raise ModelFormatError(
            f"v.position_embd.weight has {n_places} rows, and v.sam.net_3.weight makes hidden states of {sam.n_out}; "
            f"expected a square number and one, and {tower['n_embd']} (vision.embedding_length)"
        )
    if tile < block or tile % block or sam.image_size % block:
        raise ModelFormatError(
            f"{metadata.key('vision.tile_size')} is {tile}, and pictures have {sam.image_size} pixels (the rows of "
            f"v.sam.pos_embd.weight times {sam.patch_size}); expected multiples of {block}"
        )
    return VisionOptions(**tower, sam=sam, grid=grid, tile=tile, n_text=scope.options.n_embd)


def _read_sam(metadata: Metadata, scope: nn.Scope) -> SamOptions:
    n_layer, n_embd, n_head, window = (
        metadata.u32(f"vision.{key}")
        for key in ("sam.block_count", "sam.embedding_length", "sam.head_count", "window_size")
    )
    side = _size(scope, "v.sam.pos_embd", 1)
    if not 1 <= n_layer <= vision.MAX_LAYERS or n_head < 1 or n_embd < 1 or n_embd % n_head or not 1 <= window <= side:
        raise ModelFormatError(
            f"vision.sam: {n_layer} blocks, embeddings of {n_embd}, {n_head} heads, windows of {window}; expected 1 to "
            f"{vision.MAX_LAYERS} blocks, embeddings that divide among the heads, and windows of 1 to {side}"
        )
    patch_size = _size(scope, "v.sam.patch_embd", 0)
    return SamOptions(
        n_layer=n_layer, n_embd=n_embd, n_head=n_head, window=window, norm_eps=SAM_EPS, patch_size=patch_size,
        image_size=side * patch_size, n_ff=_size(scope, "v.sam.blk.0.mlp.lin1", 1),
        n_neck=_size(scope, "v.sam.neck.0", 3), n_half=_size(scope, "v.sam.net_2", 3),
        n_out=_size(scope, "v.sam.net_3", 3),
    )  # fmt: skip


def _size(scope: nn.Scope, name: str, dim: int) -> int:
    """A dimension of a weight. Raises ModelFormatError where the file has none."""
    tensor = scope.weights.get(f"{name}.weight")
    if tensor is None:
        raise ModelFormatError(f"the file has no tensor {name}.weight, which a part that reads images has")
    return tensor.dim(dim)


class EncoderBlock(vision.TowerBlock):
    attn_norm = nn.LayerNorm("ln1", "n_embd")
    attention = nn.Part(FusedTowerAttention)
    mlp_norm = nn.LayerNorm("ln2", "n_embd")
    mlp = nn.Part(PlainMLP)


class Encoder(nn.Module):
    """CLIP's blocks. Tensors below `v.`."""

    class_embedding = nn.Vector("class_embd", "n_embd", alt="class_embd.weight")
    table = nn.Weight("position_embd", "n_embd", "n_places")
    pre_norm = nn.LayerNorm("pre_ln", "n_embd")
    blocks = nn.Blocks(EncoderBlock, "n_layer")

    def forward(self, ctx: Context, x: Tensor, side: int, o: VisionOptions) -> Tensor:
        """x f32 [n_embd, side^2, pictures] -> the same; a class token goes along, and is dropped."""
        token = clip.as_f32(self.class_embedding.tensor, x, o.n_embd, 1)
        table = clip.as_f32(self.table.tensor, x, o.n_embd, o.n_places)
        places = ops.view(
            table, (o.n_embd, o.grid, o.grid), (table.stride(1), o.grid * table.stride(1)), table.stride(1)
        )
        places = ops.reshape(stretched(ctx, ops.cont(places), side), o.n_embd, side**2)
        first = ops.cont(ops.view(table, (o.n_embd, 1), (table.stride(1),)))
        x = ops.concat(ops.repeat(token + first, o.n_embd, 1, x.dim(2)), x + places, 1)
        x = self.pre_norm(x, o.norm_eps)
        for block in self.blocks:
            x = block.forward(x, o)
        return ops.cont(ops.view(x, (o.n_embd, side**2, x.dim(2)), (x.stride(1), x.stride(2)), x.stride(1)))


class VisionPart(nn.Module):
    """Everything that a file has for reading images."""

    encoder = nn.Part(Encoder, "v")
    projection = nn.Linear("mm.model.fc", "n_joined", "n_text")
    newline = nn.Vector("v.image_newline", "n_text")
    separator = nn.Vector("v.view_seperator", "n_text")

    def __init__(self, scope: nn.Scope) -> None:
        super().__init__(scope)
        self.sam = SamTower(nn.Scope(scope.weights, scope.options.sam, "v.sam.", scope.used))

    def forward(self, ctx: Context, patches: Tensor, side: int, o: VisionOptions) -> Tensor:
        """Patches f32 [channels * patch_size^2, side^2, pictures] -> f32 [n_text, side^2 / 16 * pictures]."""
        x = self.sam.forward(ctx, patches, side, o.sam)
        x = ops.concat(self.encoder.forward(ctx, x, side // PATCHES_OF_ONE, o), x, 0)
        x = vision.wide_product(self.projection.tensor, x, self.projection.bias)
        return ops.reshape(x, o.n_text, x.dim(1) * x.dim(2))

    def in_order(self, x: Tensor, layout: Tensor, o: VisionOptions) -> Tensor:
        """Rows x [n_text, n], and behind them newline and separator, in the order of `layout` i32 [m]: [n_text, m]."""
        for vector in (self.newline, self.separator):
            x = ops.concat(x, clip.as_f32(vector.tensor, x, o.n_text, 1), 1)
        return ops.get_rows(x, layout)
