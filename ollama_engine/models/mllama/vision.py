"""The vision tower of Llama 3.2 Vision, and its projector.

A picture is 1 to `max_tiles` tiles; the tower computes with all `max_tiles`, and those without pixels are padding, as
are the rows that fill each tile up to a multiple of 8. Padding rows do not see each other, and everything else sees
all. So rows of tiles with pixels come first here, and no mask is needed: they attend to all rows, the others to them.

The result has hidden states from before some local layers, as published weights want them (Meta's llama-models,
transformers 4). transformers 5 takes those from behind these layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ollama_engine import nn
from ollama_engine.input import PreparedImage
from ollama_engine.ml import ops
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import heads
from ollama_engine.models.mllama.options import VisionOptions
from ollama_engine.nn.vision import PatchEmbedding, full_attention, wide_product

OUTER_EPS = 1e-5
"""Epsilon of the norms before and behind the local layers, whatever the metadata say of those inside."""

ROW_MULTIPLE = 8
"""Each tile is padded to a multiple of so many rows."""


class VisionAttention(nn.Module):
    """Attention between all rows of a picture, except between padding and padding."""

    q = nn.Linear("attn_q", "n_embd", "n_embd")
    k = nn.Linear("attn_k", "n_embd", "n_embd")
    v = nn.Linear("attn_v", "n_embd", "n_embd")
    output = nn.Linear("attn_output", "n_embd", "n_embd")

    def forward(self, x: Tensor, n_seen: int, o: VisionOptions) -> Tensor:
        """x [n_embd, n], of which the first `n_seen` rows are no padding -> [n_embd, n]."""
        q, k, v = (heads(wide_product(p.tensor, x, p.bias), o.head_dim) for p in (self.q, self.k, self.v))
        n = x.dim(1)
        seen = full_attention(_rows(q, 0, n_seen), k, v, o.attention_scale)
        if n_seen == n:
            return self._joined(seen)
        shown = (_rows(k, 0, n_seen), _rows(v, 0, n_seen))
        padding = full_attention(_rows(q, n_seen, n), *shown, o.attention_scale)
        return self._joined(ops.concat(seen, padding, 1))

    def _joined(self, attended: Tensor) -> Tensor:
        return wide_product(self.output.tensor, attended, self.output.bias)


def _rows(x: Tensor, begin: int, end: int) -> Tensor:
    """Rows [begin, end) of [head_dim, heads, n]."""
    return ops.view(x, (x.dim(0), x.dim(1), end - begin), (x.stride(1), x.stride(2)), begin * x.stride(2))


class VisionMLP(nn.Module):
    """down(gelu(up x)), with the exact form of GELU."""

    up = nn.Linear("ffn_up", "n_embd", "n_ff", bias=True)
    down = nn.Linear("ffn_down", "n_ff", "n_embd", bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        x = nn.gelu_erf(wide_product(self.up.tensor, x, self.up.bias), self.up.tensor)
        return wide_product(self.down.tensor, x, self.down.bias)


class LocalLayer(nn.Module):
    """One block: attention and feed-forward, each behind a norm and added to its input."""

    attn_norm = nn.LayerNorm("attn_norm", "n_embd", bias=True)
    attention = nn.Part(VisionAttention)
    ffn_norm = nn.LayerNorm("ffn_norm", "n_embd", bias=True)
    mlp = nn.Part(VisionMLP)

    def forward(self, x: Tensor, n_seen: int, o: VisionOptions) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]; `n_seen` as in VisionAttention."""
        x = x + self.attended(self.attention.forward(self.attn_norm(x, o.norm_eps), n_seen, o))
        return x + self.fed(self.mlp.forward(self.ffn_norm(x, o.norm_eps)))

    def attended(self, branch: Tensor) -> Tensor:
        """The term that the attention adds to its input."""
        return branch

    def fed(self, branch: Tensor) -> Tensor:
        """The term that the feed-forward block adds to its input."""
        return branch


class GlobalLayer(LocalLayer):
    """A block whose branches are multiplied by gates. The file has their tanh."""

    attn_gate = nn.Scalar("attn_gate")
    ffn_gate = nn.Scalar("ffn_gate")

    def attended(self, branch: Tensor) -> Tensor:
        return ops.scale(branch, self.attn_gate.value)

    def fed(self, branch: Tensor) -> Tensor:
        return ops.scale(branch, self.ffn_gate.value)


class GatedEmbedding(nn.Module):
    """A row of a table for each aspect ratio, times a gate whose tanh is in the file."""

    table: nn.Embedding
    gate: nn.Scalar

    def row(self, ratio: Tensor, *shape: int) -> Tensor:
        """The embedding of the aspect ratio i32 [1], in this shape."""
        return ops.scale(ops.reshape(self.table(ratio), *shape), self.gate.value)


class PreTile(GatedEmbedding):
    table = nn.Embedding("v.pre_tile_position_embd", "tile_row", "n_ratios")
    gate = nn.Scalar("v.pre_tile_position_embd.gate")


class PostTile(GatedEmbedding):
    table = nn.Embedding("v.post_tile_position_embd", "tile_row", "n_ratios")
    gate = nn.Scalar("v.post_tile_position_embd.gate")


class TilePlaces(GatedEmbedding):
    """Places in tiles, by aspect ratio and tile."""

    table = nn.Embedding("v.tile_position_embd", "place_row", "n_ratios")
    gate = nn.Scalar("v.tile_position_embd.gate")


class Places(nn.Module):
    """Places in a tile, the same for all. The file has 1 - tanh of the gate that `TilePlaces` has the tanh of."""

    table = nn.Embedding("v.position_embd", "n_embd", "n_places")
    gate = nn.Scalar("v.position_embd.gate")

    def forward(self, ctx: Context) -> Tensor:
        """[n_embd, n_places]."""
        rows = ctx.from_ints(np.arange(self.table.tensor.dim(1), dtype=np.int32))
        return ops.scale(self.table(rows), self.gate.value)


@dataclass(frozen=True, slots=True)
class _Rows:
    """All rows of a picture: those of its tiles, then the padding of its tiles."""

    tiles: Tensor
    """[n_embd, n_places, max_tiles]."""
    padding: Tensor
    """[n_embd, rows of padding in a tile, max_tiles]."""

    def flat(self) -> Tensor:
        """[n_embd, n]."""
        tiles, padding = (ops.reshape(x, x.dim(0), x.dim(1) * x.dim(2)) for x in (self.tiles, self.padding))
        return ops.concat(tiles, padding, 1)


class Vision(nn.Module):
    """Tiles of patches to the embeddings that cross-attention layers take in."""

    patch_embd = PatchEmbedding("v.patch_embd")
    class_embd = nn.Vector("v.class_embd", "n_embd")
    pre_tile = nn.Part(PreTile)
    places = nn.Part(Places)
    tile_places = nn.Part(TilePlaces)
    pre_norm = nn.LayerNorm("v.pre_ln", "n_embd", bias=True)
    local_layers = nn.Blocks(LocalLayer, "n_layer", "v.blk")
    post_norm = nn.LayerNorm("v.post_ln", "n_embd", bias=True)
    post_tile = nn.Part(PostTile)
    global_layers = nn.Blocks(GlobalLayer, "n_global_layer", "v.global.blk")
    projector = nn.Linear("mm.0", "n_features", "n_text", bias=True)

    def __init__(self, weights: Mapping[str, Tensor], options: VisionOptions) -> None:
        scope = nn.Scope(weights, options)
        super().__init__(scope)
        self.options = options
        self.used_weights = frozenset(scope.used)

    def forward(self, ctx: Context, image: PreparedImage) -> Tensor:
        """The embeddings of the tiles that have pixels, f32 [n_text, n_places * tiles]."""
        o = self.options
        ratio = ctx.from_ints(image.arrays["ratio"])
        patches = ctx.from_floats(image.arrays["patches"])
        tiles = self._embed(ctx, patches, ratio)
        n_pad = -o.n_places % ROW_MULTIPLE
        x = _Rows(tiles, ctx.zeros("f32", (o.n_embd, n_pad, o.max_tiles))).flat()
        n_seen = patches.dim(1) // o.n_patches * o.n_places
        kept: dict[int, Tensor] = {}
        for i, layer in enumerate(self.local_layers):
            if i in o.kept_layers:
                kept[i] = _first(x, n_seen)
            x = layer.forward(x, n_seen, o)
        x = self._behind_local(self.post_norm(x, OUTER_EPS), ratio, n_pad)
        for layer in self.global_layers:
            x = layer.forward(x, n_seen, o)
        features = self._features(_first(x, n_seen), [kept[i] for i in o.kept_layers])
        return wide_product(self.projector.tensor, features, self.projector.bias)

    def _embed(self, ctx: Context, patches: Tensor, ratio: Tensor) -> Tensor:
        """Patches [patch_length, n_patches * tiles] -> [n_embd, n_places, max_tiles].

        Tiles without pixels are zeros after normalization, so their patches add nothing.
        """
        o = self.options
        n = patches.dim(1) // o.n_patches
        x = ops.reshape(self.patch_embd(patches), o.n_embd, o.n_patches, n)
        if n < o.max_tiles:
            x = ops.concat(x, ctx.zeros("f32", (o.n_embd, o.n_patches, o.max_tiles - n)), 2)
        x = x + self.pre_tile.row(ratio, o.n_embd, 1, o.max_tiles)
        first = ctx.zeros("f32", (o.n_embd, 1, o.max_tiles)) + self.class_embd.tensor
        x = ops.concat(first, x, 1) + self.places.forward(ctx)
        x = x + self.tile_places.row(ratio, o.n_embd, o.n_places, o.max_tiles)
        return self.pre_norm(x, OUTER_EPS)

    def _behind_local(self, x: Tensor, ratio: Tensor, n_pad: int) -> Tensor:
        """Add each tile's embedding to all of its rows: [n_embd, n] -> [n_embd, n]."""
        o = self.options
        tile = self.post_tile.row(ratio, o.n_embd, 1, o.max_tiles)
        tiles = ops.view(x, (o.n_embd, o.n_places, o.max_tiles), (x.stride(1), x.stride(1) * o.n_places), 0)
        if not n_pad:
            return ops.reshape(tiles + tile, o.n_embd, o.n_places * o.max_tiles)
        begin = o.n_places * o.max_tiles * x.stride(1)
        padding = ops.view(x, (o.n_embd, n_pad, o.max_tiles), (x.stride(1), x.stride(1) * n_pad), begin)
        return _Rows(tiles + tile, padding + tile).flat()

    def _features(self, last: Tensor, kept: list[Tensor]) -> Tensor:
        """The last hidden state [n_embd, n], then the kept ones, whose number changes fastest: [n_features, n]."""
        if not kept:
            return last
        n_embd, n = last.dim(0), last.dim(1)
        stacked = ops.reshape(kept[0], 1, n_embd, n)
        for x in kept[1:]:
            stacked = ops.concat(stacked, ops.reshape(x, 1, n_embd, n), 0)
        return ops.concat(last, ops.reshape(stacked, n_embd * len(kept), n), 0)


def _first(x: Tensor, n: int) -> Tensor:
    """The first rows of [m, rows], copied."""
    return ops.cont(ops.view(x, (x.dim(0), n), (x.stride(1),), 0))
