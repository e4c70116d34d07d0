"""Llama 4's vision part: a tower that reads each tile of an image alone, and a projector to the text's size.

Tensors below `v.` and `mm.`, as Ollama's converter names them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.input import FloatArray, Int32Array
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.images import encode_tiles
from ollama_engine.nn import clip, vision


@dataclass(frozen=True, kw_only=True)
class VisionOptions(vision.SquareOptions):
    shuffle: int
    """Side of the square of patches that becomes one embedding."""
    rope_base: float
    n_adapter: int
    """Length of an embedding between the two products of the adapter, and behind them."""
    n_text: int
    """Length of an embedding of the text model."""

    @property
    def n_pixels(self) -> int:
        """Numbers in a patch."""
        return self.n_channels * self.patch_size**2

    @property
    def n_places(self) -> int:
        """Rows of a tile: its patches, and one for the class."""
        return self.n_patches + 1

    @property
    def n_shuffled(self) -> int:
        """Length of the joined patches of a square."""
        return self.n_embd * self.shuffle**2

    @property
    def n_tokens(self) -> int:
        """Embeddings of a tile."""
        return (self.grid // self.shuffle) ** 2


def read_options(metadata: Metadata, n_text: int, n_adapter: int) -> VisionOptions:
    """Options of the vision part; `n_adapter` is the width of its tensors. Raises ModelFormatError."""
    sizes = vision.read_tower(metadata, eps=metadata.f32("vision.layer_norm_epsilon", 1e-5))
    o = VisionOptions(
        **sizes,
        image_size=metadata.u32("vision.image_size"),
        shuffle=_read_shuffle(metadata),
        rope_base=nn.check_base("vision.rope.freq_base", metadata.f32("vision.rope.freq_base", 10000.0)),
        n_adapter=n_adapter,
        n_text=n_text,
    )
    if o.grid < 1 or o.grid % o.shuffle:
        raise ModelFormatError(
            f"a tile of {o.image_size} pixels (vision.image_size) has {o.grid} patches of {o.patch_size} along a side; "
            f"expected a multiple of {o.shuffle}, the patches that are joined (vision.pixel_shuffle_ratio)"
        )
    if o.head_dim % 4:
        raise ModelFormatError(
            f"heads of the vision tower have {o.head_dim} dimensions (vision.embedding_length / "
            "vision.attention.head_count); a rotation with two axes needs a multiple of 4"
        )
    return o


def _read_shuffle(metadata: Metadata) -> int:
    """Ollama's files say the ratio of the sides, llama.cpp's its reciprocal."""
    factor = metadata.u32("vision.projector.scale_factor", None)
    if factor is None:
        ratio = metadata.f32("vision.pixel_shuffle_ratio", 0.5)
        factor = round(1 / ratio) if 0 < ratio <= 1 else 0
    if factor < 1:
        raise ModelFormatError(
            "vision.pixel_shuffle_ratio is above 0 and at most 1, and vision.projector.scale_factor 1 or more"
        )
    return factor


def patch_places(o: VisionOptions) -> tuple[Int32Array, Int32Array]:
    """Columns and rows of the patches of a tile, i32 [n_places]. They count from 1; the class has 0."""
    index = np.arange(o.n_patches, dtype=np.int32)
    return np.append(index % o.grid + 1, np.int32(0)), np.append(index // o.grid + 1, np.int32(0))


class TileAttention(vision.TowerAttention):
    q = nn.Linear("attn_q", "n_embd", "n_embd", bias=True)
    k = nn.Linear("attn_k", "n_embd", "n_embd", bias=True)
    v = nn.Linear("attn_v", "n_embd", "n_embd", bias=True)
    output = nn.Linear("attn_output", "n_embd", "n_embd", bias=True)


class TileMLP(vision.TowerMLP):
    fc1 = nn.Linear("mlp.fc1", "n_embd", "n_ff", bias=True)
    fc2 = nn.Linear("mlp.fc2", "n_ff", "n_embd", bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """x [n_embd, n] -> [n_embd, n], with the exact form of GELU."""
        return vision.wide_product(self.fc2.tensor, _gelu_product(self.fc1, x), self.fc2.bias)


class Block(vision.TowerBlock):
    attn_norm = nn.LayerNorm("attn_norm", "n_embd", bias=True)
    attention = nn.Part(TileAttention)
    mlp_norm = nn.LayerNorm("ffn_norm", "n_embd", bias=True)
    mlp = nn.Part(TileMLP)


class Adapter(nn.Module):
    """Squares of patches, joined, through two products and GELU behind each. Tensors below `v.vision_adapter.mlp.`."""

    fc1 = nn.Linear("fc1", "n_shuffled", "n_adapter")
    fc2 = nn.Linear("fc2", "n_adapter", "n_adapter")

    def forward(self, x: Tensor) -> Tensor:
        """x [n_shuffled, n] -> [n_adapter, n]."""
        return _gelu_product(self.fc2, _gelu_product(self.fc1, x))


def _gelu_product(linear: nn.Linear, x: Tensor) -> Tensor:
    return clip.activate("gelu", linear.tensor, x, linear.bias)


class Tower(nn.Module):
    """Patches to hidden states, each tile alone. Tensors below `v.`."""

    patch_embedding = nn.Linear("patch_embedding", "n_pixels", "n_embd")
    class_embedding = nn.Vector("class_embedding", "n_embd")
    positions = nn.Vector("positional_embedding_vlm", "n_embd", "n_places")
    pre_norm = nn.LayerNorm("layernorm_pre", "n_embd", bias=True)
    blocks = nn.Blocks(Block, "n_layer")
    post_norm = nn.LayerNorm("layernorm_post", "n_embd", bias=True)
    adapter = nn.Part(Adapter, "vision_adapter.mlp")

    def forward(self, patches: Tensor, columns: Tensor, rows: Tensor, o: VisionOptions) -> Tensor:
        """Patches f32 [n_pixels, n_patches, tiles], places i32 [n_places] -> [n_adapter, n_tokens * tiles]."""

        def rotate(heads: Tensor) -> Tensor:
            """The first half of each head by a patch's column, the second by its row."""
            half = o.head_dim // 2
            heads = ops.rope(heads, columns, half, freq_base=o.rope_base)
            return ops.rope(heads, rows, half, offset=half, freq_base=o.rope_base)

        x = self.embed(patches, o)
        for block in self.blocks:
            x = block.forward(x, o, rotate=rotate)
        x = self.post_norm(x, o.norm_eps)
        patches_only = ops.view(x, (o.n_embd, o.n_patches, x.dim(2)), (x.stride(1), x.stride(2)))
        # llama.cpp has the squares in the order of their columns.
        return self.adapter.forward(vision.join_squares(ops.cont(patches_only), o.grid, o.shuffle))

    def embed(self, patches: Tensor, o: VisionOptions) -> Tensor:
        """Input of the first block, f32 [n_embd, n_places, tiles]: the class comes last."""
        x = vision.wide_product(self.patch_embedding.tensor, patches)
        last = clip.as_f32(self.class_embedding.tensor, x, o.n_embd, 1)
        x = ops.concat(x, ops.repeat(last, o.n_embd, 1, x.dim(2)), 1)
        return self.pre_norm(x + clip.as_f32(self.positions.tensor, x, o.n_embd, o.n_places), o.norm_eps)


class VisionPart(nn.Module):
    """Everything that a file has for reading images."""

    tower = nn.Part(Tower, "v")
    projector = nn.Linear("mm.linear_1", "n_adapter", "n_text")

    def forward(self, ctx: Context, tiles: FloatArray, o: VisionOptions) -> Tensor:
        """Tiles f32 [tiles, patches, n_pixels] -> f32 [n_text, n_tokens * tiles]."""
        columns, rows = (ctx.from_ints(places) for places in patch_places(o))

        def encode(patches: Tensor) -> Tensor:
            x = self.tower.forward(patches, columns, rows, o)
            return vision.wide_product(self.projector.tensor, x)

        return encode_tiles(ctx, tiles, encode)
