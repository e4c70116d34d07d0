"""Llama 4's vision part: a tower that reads each tile of an image alone, and a projector to the text's size.

Tensors below `v.` and `mm.`, as Ollama's converter names them.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.input import FloatArray, Int32Array
from ollama_engine.ml import ops
from ollama_engine.ml.context import Context
from ollama_engine.ml.metadata import Metadata
from ollama_engine.ml.ops_gelu import lies_on_cpu
from ollama_engine.ml.tensor import Tensor
from ollama_engine.nn import vision

TILES_AT_ONCE = 6
"""Tiles that share a run of the layers. All 17 of a largest image take three times the memory, and gain no time."""


@dataclass(frozen=True, kw_only=True)
class VisionOptions(vision.TowerOptions):
    image_size: int
    """Side of a tile in pixels."""
    shuffle: int
    """Side of the square of patches that becomes one embedding."""
    rope_base: float
    n_adapter: int
    """Length of an embedding between the two products of the adapter, and behind them."""
    n_text: int
    """Length of an embedding of the text model."""

    @property
    def grid(self) -> int:
        """Patches along a side of a tile."""
        return self.image_size // self.patch_size

    @property
    def n_pixels(self) -> int:
        """Numbers in a patch."""
        return self.n_channels * self.patch_size**2

    @property
    def n_places(self) -> int:
        """Rows of a tile: its patches, and one for the class."""
        return self.grid**2 + 1

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


def tile_positions(o: VisionOptions, n_tiles: int) -> tuple[Int32Array, Int32Array]:
    """Columns and rows of all patches of some tiles, i32 [n_tiles * n_places]. They count from 1; the class has 0."""
    index = np.arange(o.grid**2)
    columns, rows = (np.append(part + 1, 0) for part in (index % o.grid, index // o.grid))
    return np.tile(columns, n_tiles).astype(np.int32), np.tile(rows, n_tiles).astype(np.int32)


class Parameter(nn.Weight):
    """A tensor whose name has no `.weight` behind it."""

    def bind(self, scope: nn.Scope) -> Any:
        """A bound copy; see Weight.bind."""
        bound = copy.copy(self)
        bound.weight = scope.require([self.name], self.dims)
        return bound


class TileAttention(vision.TowerAttention):
    """Attention of all rows of a tile to all of the same tile."""

    q = nn.Linear("attn_q", "n_embd", "n_embd", bias=True)
    k = nn.Linear("attn_k", "n_embd", "n_embd", bias=True)
    v = nn.Linear("attn_v", "n_embd", "n_embd", bias=True)
    output = nn.Linear("attn_output", "n_embd", "n_embd", bias=True)

    def forward(
        self,
        x: Tensor,
        o: VisionOptions,  # type: ignore[override]
        mask: Tensor | None = None,
        rotate: vision.Rotation | None = None,
    ) -> Tensor:
        """x [n_embd, n_places * tiles], tile after tile -> [n_embd, n_places * tiles]."""
        n, tiles = o.n_places, x.dim(1) // o.n_places
        q, k, v = (ops.reshape(made(x), o.head_dim, o.n_head, n * tiles) for made in (self.q, self.k, self.v))
        if rotate is not None:
            q, k = rotate(q), rotate(k)
        q, k, v = (ops.permute(ops.reshape(t, o.head_dim, o.n_head, n, tiles), 0, 2, 1, 3) for t in (q, k, v))
        out = ops.flash_attention(q, k, v, mask, o.attention_scale)
        return self.output(ops.reshape(out, o.n_embd, n * tiles))


class TileMLP(nn.ErfMLP):
    up = nn.Linear("mlp.fc1", "n_embd", "n_ff", bias=True)
    down = nn.Linear("mlp.fc2", "n_ff", "n_embd", bias=True)


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
        return _gelu(self.fc2(_gelu(self.fc1(x), self.fc1.tensor)), self.fc2.tensor)


def _gelu(x: Tensor, weight: Tensor) -> Tensor:
    return ops.gelu_exact(x) if lies_on_cpu(weight) else ops.unary(x, "gelu_erf")


class Tower(nn.Module):
    """Patches to hidden states, each tile alone. Tensors below `v.`."""

    patch_embedding = nn.Linear("patch_embedding", "n_pixels", "n_embd")
    class_embedding = Parameter("class_embedding", "n_embd")
    positions = Parameter("positional_embedding_vlm", "n_embd", "n_places")
    pre_norm = nn.LayerNorm("layernorm_pre", "n_embd", bias=True)
    blocks = nn.Blocks(Block, "n_layer")
    post_norm = nn.LayerNorm("layernorm_post", "n_embd", bias=True)
    adapter = nn.Part(Adapter, "vision_adapter.mlp")

    def forward(self, patches: Tensor, columns: Tensor, rows: Tensor, o: VisionOptions) -> Tensor:
        """Patches f32 [n_pixels, grid^2, tiles], places i32 [n_places * tiles] -> [n_adapter, n_tokens * tiles]."""
        n, tiles = o.n_places, patches.dim(2)
        x = ops.reshape(self.patch_embedding(ops.reshape(patches, o.n_pixels, (n - 1) * tiles)), o.n_embd, n - 1, tiles)
        last = ops.cast(vision.in_graph(self.class_embedding.tensor, x, o.n_embd, 1, 1), "f32")
        x = ops.concat(x, ops.repeat(last, o.n_embd, 1, tiles), 1)
        x = self.pre_norm(x + self.positions.tensor, o.norm_eps)

        def rotate(heads: Tensor) -> Tensor:
            """The first half of each head by a patch's column, the second by its row."""
            half = o.head_dim // 2
            heads = ops.rope(heads, columns, half, freq_base=o.rope_base)
            return ops.rope(heads, rows, half, offset=half, freq_base=o.rope_base)

        x = ops.reshape(x, o.n_embd, n * tiles)
        for block in self.blocks:
            x = block.forward(x, o, rotate=rotate)
        x = ops.reshape(self.post_norm(x, o.norm_eps), o.n_embd, n, tiles)
        x = ops.view(x, (o.n_embd, n - 1, tiles), (x.stride(1), x.stride(2)))  # without the class
        return self.adapter.forward(join_squares(ops.cont(x), o))


def join_squares(x: Tensor, o: VisionOptions) -> Tensor:
    """The patches of each square end to end, row by row (pixel shuffle): x [n_embd, grid^2, tiles] -> [n_shuffled, n].

    Squares are in the order of their rows, too. llama.cpp has them in the order of their columns.
    """
    f, squares, tiles = o.shuffle, o.grid // o.shuffle, x.dim(2)
    x = ops.permute(ops.reshape(x, o.n_embd * f, squares, f, squares * tiles), 0, 2, 1, 3)
    return ops.reshape(ops.cont(x), o.n_shuffled, squares**2 * tiles)


class VisionPart(nn.Module):
    """Everything that a file has for reading images."""

    tower = nn.Part(Tower, "v")
    projector = nn.Linear("mm.linear_1", "n_adapter", "n_text")

    def forward(self, ctx: Context, tiles: FloatArray, o: VisionOptions) -> Tensor:
        """Tiles f32 [tiles, patches, n_pixels] -> f32 [n_text, n_tokens * tiles]."""
        out: Tensor | None = None
        for begin in range(0, len(tiles), TILES_AT_ONCE):
            some = tiles[begin : begin + TILES_AT_ONCE]
            places = tile_positions(o, len(some))
            columns, rows = (ctx.from_ints(part) for part in places)
            patches = ctx.from_floats(some, (o.n_pixels, some.shape[1], len(some)))
            rows_of_some = self.projector(self.tower.forward(patches, columns, rows, o))
            out = rows_of_some if out is None else ops.concat(out, rows_of_some, 1)
        assert out is not None, "an image has a tile"
        return out
