"""Gemma 4's vision part: a tower for pictures of any shape, whose patches are averaged to embeddings of the text model.

Its blocks are those of the text part: norms on both sides of attention and feed-forward, queries, keys and values that
are normalized. Patches have an embedding and an angle for each of their two coordinates. Tensors below `v.` and `mm.`,
as llama.cpp and Ollama name them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import heads
from ollama_engine.models.gemma4.clamped import ClampedLinear
from ollama_engine.nn import vision

if TYPE_CHECKING:
    from ollama_engine.ml.graph.context import Context

ROPE_BASE = 100.0
POSITIONS = "v.position_embd.weight"
BIAS = "v.std_bias"


@dataclass(frozen=True, kw_only=True)
class VisionOptions(vision.TowerOptions):
    pool: int
    """Side of the square of patches that becomes one embedding: a block."""
    n_positions: int
    """Coordinates that have an embedding."""
    n_text: int
    """Length of an embedding of the text model."""

    @property
    def n_pixels(self) -> int:
        """Numbers in a patch."""
        return self.n_channels * self.patch_size**2

    @property
    def attention_scale(self) -> float:
        """Scores are not scaled: queries and keys are normalized."""
        return 1.0


def read_options(metadata: Metadata, n_text: int, n_positions: int) -> VisionOptions:
    """Options of the vision part; no key counts the `n_positions`. Raises ModelFormatError."""
    sizes = vision.read_tower(metadata, eps=1e-6)
    pool = metadata.u32("vision.projector.scale_factor", 3)
    if sizes["n_embd"] // sizes["n_head"] % 4 or pool < 1:
        raise ModelFormatError(
            f"heads of the vision tower have {sizes['n_embd'] // sizes['n_head']} dimensions (vision.embedding_length "
            f"/ vision.attention.head_count), expected a multiple of 4; vision.projector.scale_factor {pool} is above 0"
        )
    return VisionOptions(**sizes, pool=pool, n_positions=n_positions, n_text=n_text)


class Attention(nn.Module):
    """Attention of all patches to all."""

    q = ClampedLinear("attn_q", "n_embd", "n_embd")
    k = ClampedLinear("attn_k", "n_embd", "n_embd")
    v = ClampedLinear("attn_v", "n_embd", "n_embd")
    q_norm = nn.RMSNorm("attn_q_norm", "head_dim")
    k_norm = nn.RMSNorm("attn_k_norm", "head_dim")
    output = ClampedLinear("attn_out", "n_embd", "n_embd")

    def forward(self, x: Tensor, places: tuple[Tensor, Tensor], o: VisionOptions) -> Tensor:
        """x [n_embd, n], columns and rows i32 [n] -> [n_embd, n]."""
        q = rotate(self.q_norm(heads(self.q(x), o.head_dim), o.norm_eps), places)
        k = rotate(self.k_norm(heads(self.k(x), o.head_dim), o.norm_eps), places)
        v = ops.rms_norm(heads(self.v(x), o.head_dim), o.norm_eps)
        parts = vision.parts_for(self.q.tensor)
        return self.output(vision.full_attention(q, k, v, o.attention_scale, parts=parts))


def rotate(heads: Tensor, places: tuple[Tensor, Tensor]) -> Tensor:
    """Queries or keys [head_dim, heads, n]: half of each head turns by the column of its patch, half by the row."""
    half = heads.dim(0) // 2
    for i, place in enumerate(places):
        heads = ops.rope(heads, place, half, mode="neox", offset=i * half, freq_base=ROPE_BASE)
    return heads


class GeluMLP(nn.Module):
    """GeGLU."""

    gate = ClampedLinear("ffn_gate", "n_embd", "n_ff")
    up = ClampedLinear("ffn_up", "n_embd", "n_ff")
    down = ClampedLinear("ffn_down", "n_ff", "n_embd")

    def forward(self, x: Tensor) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        return self.down(nn.gelu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    attn_norm = nn.RMSNorm("ln1", "n_embd")
    attention = nn.Part(Attention)
    attn_post_norm = nn.RMSNorm("attn_post_norm", "n_embd")
    mlp_norm = nn.RMSNorm("ln2", "n_embd")
    mlp = nn.Part(GeluMLP)
    mlp_post_norm = nn.RMSNorm("ffn_post_norm", "n_embd")

    def forward(self, x: Tensor, places: tuple[Tensor, Tensor], o: VisionOptions) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        a = self.attention.forward(self.attn_norm(x, o.norm_eps), places, o)
        x = self.attn_post_norm(a, o.norm_eps) + x
        return self.mlp_post_norm(self.mlp.forward(self.mlp_norm(x, o.norm_eps)), o.norm_eps) + x


class PlaceEmbedding(nn.Embedding):
    """Two tables in one tensor: of columns and of rows."""

    def of(self, places: tuple[Tensor, Tensor]) -> Tensor:
        """Columns and rows, i32 [n] -> the sum of their embeddings, [n_embd, n]."""
        table = self.tensor
        ctx, shape = cast("Context", places[0].owner), (table.dim(0), table.dim(1))
        x, y = (
            ops.get_rows(ops.view(table, shape, (table.stride(1),), i * table.stride(2), ctx=ctx), place)
            for i, place in enumerate(places)
        )
        return x + y


class Tower(nn.Module):
    """Patches to hidden states. Tensors below `v.`."""

    patch_embedding = vision.PatchEmbedding("patch_embd")
    place_embedding = PlaceEmbedding("position_embd", "n_embd", "n_positions", 2)
    blocks = nn.Blocks(Block, "n_layer")

    def forward(self, patches: Tensor, places: tuple[Tensor, Tensor], o: VisionOptions) -> Tensor:
        """Patches f32 [channels * patch_size^2, n] of pixels from 0 to 1 -> f32 [n_embd, n]."""
        x = self.patch_embedding(ops.scale(patches, 2.0, -1.0)) + self.place_embedding.of(places)
        for block in self.blocks:
            x = block.forward(x, places, o)
        return x


class Standardization(nn.Module):
    """Embeddings of blocks to about a mean of 0 and a deviation of 1, in large models."""

    mean = nn.Vector(BIAS, "n_embd")
    scale = nn.Vector("v.std_scale", "n_embd")

    def forward(self, x: Tensor) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        return (x - self.mean.tensor) * self.scale.tensor


class VisionPart(nn.Module):
    """Everything that a file has for reading images."""

    tower = nn.Part(Tower, "v")
    standardization = nn.Part[Any](lambda scope: Standardization(scope) if BIAS in scope.weights else None)
    projection = ClampedLinear("mm.input_projection", "n_embd", "n_text")

    def forward(self, patches: Tensor, places: tuple[Tensor, Tensor], columns: int, o: VisionOptions) -> Tensor:
        """The embeddings of an image, block by block.

        Args:
            patches: f32 [channels * patch_size^2, n], row by row.
            places: the column and the row of each, i32 [n].
            columns: patches in a row.
            o: the options.

        Returns:
            f32 [n_text, n / pool^2].
        """
        x = vision.average_pool(self.tower.forward(patches, places, o), columns, o.pool)
        x = ops.scale(x, math.sqrt(o.n_embd))
        if self.standardization is not None:
            x = self.standardization.forward(x)
        return self.projection(ops.rms_norm(x, o.norm_eps))
