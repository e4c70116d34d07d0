"""The vision tower of SAM (Kirillov et al. 2023): blocks with attention within windows, a few to the whole picture.

Scores of attention grow by how far patches are apart, in rows and in columns (Li et al. 2022, arXiv:2112.01526): a
query is multiplied with an embedding of each distance. Here these products are further numbers of the query, and a key
has a 1 at its row and at its column, so that one product of both is the whole score. Convolutions make 16 patches one.

Tensors lie below `v.sam.`, as llama.cpp names them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ollama_engine import nn
from ollama_engine.ml import ops
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.deepseek_ocr.stretching import linear, stretched
from ollama_engine.models.fused import columns
from ollama_engine.models.qwen25vl.vision import PlainMLP
from ollama_engine.nn import clip, vision

__all__ = ["FusedTowerAttention", "SamOptions", "SamTower"]


@dataclass(frozen=True, kw_only=True)
class SamOptions(vision.SquareOptions):
    """Sizes; `image_size` is that of the largest picture."""

    window: int
    """Side of a window in patches."""
    n_neck: int
    """Length of a hidden state behind the blocks."""
    n_half: int
    """The same where four patches are one."""
    n_out: int
    """The same where 16 are."""

    @property
    def n_embd_thrice(self) -> int:
        """Rows of a matrix of queries, keys and values."""
        return 3 * self.n_embd

    @property
    def n_window_distances(self) -> int:
        """Distances of two places along the side of a window."""
        return 2 * self.window - 1

    @property
    def n_distances(self) -> int:
        """The same of the largest picture."""
        return 2 * self.grid - 1


class Square:
    """Constants of a graph for attention within squares of `side` patches."""

    def __init__(self, ctx: Context, side: int) -> None:
        self.ctx, self.side = ctx, side
        at = np.arange(side, dtype=np.int32)
        self.distances = ctx.from_ints((at[:, None] - at + side - 1).reshape(-1))
        """i32 [side * side]: the number of the distance of a key's place to a query's, all keys for each query."""
        row, column = np.divmod(np.arange(side**2), side)
        self.places = ctx.from_floats(np.concatenate([np.eye(side)[row], np.eye(side)[column]], axis=1))
        """f32 [2 * side, side^2]: 1 at a patch's row, and at its column."""

    def embeddings(self, table: Tensor) -> Tensor:
        """Those of distances, f32 [head_dim, any], which are stretched, -> [head_dim, keys, queries] of an axis."""
        n, table = 2 * self.side - 1, ops.view(table, (table.dim(0), table.dim(1)), ctx=self.ctx)
        if table.dim(1) != n:
            table = ops.mul_mat(ops.cont(ops.transpose(table)), self.ctx.from_floats(linear(n, table.dim(1))))
        return ops.reshape(ops.get_rows(table, self.distances), table.dim(0), self.side, self.side)


class FusedTowerAttention(nn.Module):
    """Attention of all patches of a picture to all; queries, keys and values are one matrix."""

    qkv = nn.Linear("attn_qkv", "n_embd", "n_embd_thrice")
    output = nn.Linear("attn_out", "n_embd", "n_embd")

    def project(self, x: Tensor, o: vision.TowerOptions) -> list[Tensor]:
        """x [n_embd, n, pictures] -> queries, keys and values [head_dim, heads, n, pictures]."""
        rows = vision.wide_product(self.qkv.tensor, x, self.qkv.bias)
        parts = columns(ops.reshape(rows, rows.dim(0), x.dim(1) * x.dim(2)), *(o.n_embd,) * 3)
        return [ops.reshape(part, o.head_dim, o.n_head, x.dim(1), x.dim(2)) for part in parts]

    def forward(
        self, x: Tensor, o: vision.TowerOptions, mask: Tensor | None = None, rotate: vision.Rotation | None = None
    ) -> Tensor:
        """x [n_embd, n, pictures] -> the same; `mask` and `rotate` are None."""
        q, k, v = self.project(x, o)
        out = vision.full_attention(q, k, v, o.attention_scale, parts=vision.parts_for(self.qkv.tensor))
        return vision.wide_product(self.output.tensor, out, self.output.bias)


class WindowedAttention(FusedTowerAttention):
    """Attention within squares, whose scores grow by distances."""

    qkv = nn.Linear("attn.qkv", "n_embd", "n_embd_thrice")
    output = nn.Linear("attn.out", "n_embd", "n_embd")
    rows = nn.Embedding("attn.pos_h", "head_dim", "n_window_distances")
    columns = nn.Embedding("attn.pos_w", "head_dim", "n_window_distances")

    def within(self, x: Tensor, square: Square, o: SamOptions) -> Tensor:
        """x [n_embd, side^2, squares] -> the same."""
        n, squares = x.dim(1), x.dim(2)
        # Heads of different squares are as separate as those of one.
        q, k, v = (
            ops.reshape(ops.cont(ops.permute(part, 0, 2, 1, 3)), o.head_dim, n, o.n_head * squares)
            for part in self.project(x, o)
        )
        grown = ops.scale(self.by_distance(q, square, o), 1 / o.attention_scale)
        q = ops.concat(q, grown, 0)
        k = ops.concat(k, ops.repeat(square.places, square.places.dim(0), n, k.dim(2)), 0)
        q, k, v = (ops.permute(part, 0, 2, 1, 3) for part in (q, k, v))
        out = vision.full_attention(q, k, v, o.attention_scale, parts=vision.parts_for(self.qkv.tensor))
        out = ops.cont(ops.permute(ops.reshape(out, o.n_embd, squares, n), 0, 2, 1, 3))
        return vision.wide_product(self.output.tensor, out, self.output.bias)

    def by_distance(self, q: Tensor, square: Square, o: SamOptions) -> Tensor:
        """q [head_dim, side^2, heads] -> what scores grow by for each row of keys, and each column: [2 * side, ...]."""
        side, n = square.side, q.dim(1)
        q = ops.reshape(q, o.head_dim, side, side, q.dim(2))
        rows = ops.mul_mat(square.embeddings(self.rows.tensor), q)
        turned = ops.mul_mat(square.embeddings(self.columns.tensor), ops.cont(ops.permute(q, 0, 2, 1, 3)))
        both = ops.concat(rows, ops.cont(ops.permute(turned, 0, 2, 1, 3)), 0)
        return ops.reshape(both, 2 * side, n, both.dim(3))


class WholeAttention(WindowedAttention):
    rows = nn.Embedding("attn.pos_h", "head_dim", "n_distances")
    columns = nn.Embedding("attn.pos_w", "head_dim", "n_distances")


class SamMLP(PlainMLP):
    fc1 = nn.Linear("mlp.lin1", "n_embd", "n_ff")
    fc2 = nn.Linear("mlp.lin2", "n_ff", "n_embd")

    def forward(self, x: Tensor) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        x = clip.activate("gelu", self.fc1.tensor, x, self.fc1.bias)
        return vision.wide_product(self.fc2.tensor, x, self.fc2.bias)


class WholeBlock(nn.Module):
    """A block whose patches attend to the whole picture."""

    attn_norm = nn.LayerNorm("pre_ln", "n_embd")
    attention: nn.Part[WindowedAttention] = nn.Part(WholeAttention)
    mlp_norm = nn.LayerNorm("post_ln", "n_embd")
    mlp = nn.Part(SamMLP)

    def forward(self, x: Tensor, picture: Square, window: Square, o: SamOptions) -> Tensor:
        """x [n_embd, side^2, pictures] -> the same."""
        x = self.attend(self.attn_norm(x, o.norm_eps), picture, window, o) + x
        return self.mlp.forward(self.mlp_norm(x, o.norm_eps)) + x

    def attend(self, x: Tensor, picture: Square, window: Square, o: SamOptions) -> Tensor:
        """x [n_embd, side^2, pictures] -> the same."""
        return self.attention.within(x, picture, o)


class WindowBlock(WholeBlock):
    """A block whose patches attend to their window; zeros fill windows at the right and bottom edge."""

    attention = nn.Part(WindowedAttention)

    def attend(self, x: Tensor, picture: Square, window: Square, o: SamOptions) -> Tensor:
        n_embd, side, pictures = x.dim(0), picture.side, x.dim(2)
        across, beyond = -(-side // window.side), -side % window.side
        x = ops.pad(ops.reshape(x, n_embd, side, side, pictures), (0, 0), (0, beyond), (0, beyond))
        rows = across * pictures
        x = ops.cont(ops.permute(ops.reshape(x, n_embd * window.side, across, window.side, rows), 0, 2, 1, 3))
        x = self.attention.within(ops.reshape(x, n_embd, window.side**2, across * rows), window, o)
        x = ops.cont(ops.permute(ops.reshape(x, n_embd * window.side, window.side, across, rows), 0, 2, 1, 3))
        x = ops.reshape(x, n_embd, side + beyond, side + beyond, pictures)
        x = ops.cont(ops.view(x, (n_embd, side, side, pictures), (x.stride(1), x.stride(2), x.stride(3))))
        return ops.reshape(x, n_embd, side**2, pictures)


def make_block(scope: nn.Scope) -> WholeBlock:
    """The kind that the table of distances is for."""
    table = scope.weights.get(f"{scope.prefix}attn.pos_h.weight")
    o: SamOptions = scope.options
    return (WholeBlock if table is not None and table.dim(1) != o.n_window_distances else WindowBlock)(scope)


class SamTower(nn.Module):
    """Patches to hidden states, one for each square of 16."""

    patch_embedding = vision.PatchEmbedding("patch_embd")
    table = nn.Weight("pos_embd", "n_embd", "grid", "grid")
    blocks = nn.Blocks(make_block, "n_layer")
    neck = nn.Weight("neck.0", 1, 1, "n_embd", "n_neck")
    neck_norm = nn.LayerNorm("neck.1", "n_neck")
    second = nn.Weight("neck.2", 3, 3, "n_neck", "n_neck")
    second_norm = nn.LayerNorm("neck.3", "n_neck")
    halving = nn.Weight("net_2", 3, 3, "n_neck", "n_half")
    last = nn.Weight("net_3", 3, 3, "n_half", "n_out")

    def forward(self, ctx: Context, patches: Tensor, side: int, o: SamOptions) -> Tensor:
        """Patches f32 [channels * patch_size^2, side^2, pictures] -> f32 [n_out, side^2 / 16, pictures]."""
        x = self.patch_embedding(patches)
        places = stretched(ctx, clip.as_f32(self.table.tensor, x, o.n_embd, o.grid, o.grid), side)
        x = x + ops.reshape(places, o.n_embd, side**2)
        picture, window = Square(ctx, side), Square(ctx, o.window)
        for block in self.blocks:
            x = block.forward(x, picture, window, o)
        flat = vision.in_graph(self.neck.tensor, x, o.n_embd, o.n_neck)
        x = self.neck_norm(vision.wide_product(flat, x, stored=self.neck.tensor), o.norm_eps)
        x = self.second_norm(_patches(ops.conv_2d(self.second.tensor, _image(x, side), padding=1)), o.norm_eps)
        x = ops.conv_2d(self.halving.tensor, _image(x, side), stride=2, padding=1)
        return _patches(ops.conv_2d(self.last.tensor, x, stride=2, padding=1))


def _image(x: Tensor, side: int) -> Tensor:
    """[n, side^2, pictures] -> [side, side, n, pictures]."""
    return ops.cont(ops.permute(ops.reshape(x, x.dim(0), side, side, x.dim(2)), 2, 0, 1, 3))


def _patches(x: Tensor) -> Tensor:
    """[side, side, n, pictures] -> [n, side^2, pictures]."""
    x = ops.cont(ops.permute(x, 1, 2, 0, 3))
    return ops.reshape(x, x.dim(0), x.dim(1) * x.dim(2), x.dim(3))
