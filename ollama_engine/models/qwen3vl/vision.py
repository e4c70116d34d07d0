"""The vision part of Qwen3-VL and Qwen3.5: a tower for pictures of any size, whose patches merge to embeddings.

Patches have learned embeddings of their places and are rotated by them, too; each attends to all others. In Qwen3-VL
the hidden states of some blocks merge as well, to features that the text model adds behind its first layers
(`models.media_rows`). Sources: Bai et al. 2025 (arXiv:2511.21631), Meng et al. 2024 (arXiv:2406.04334).

Tensors lie below `v.`, as Ollama's converter names them. Files of llama.cpp differ by more than names: kernels are one
for each frame, queries, keys and values are one matrix, and mergers of features are counted by blocks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.fused import columns
from ollama_engine.models.qwen25vl.vision import BlockTowerOptions, read_block_tower, rotate
from ollama_engine.nn import vision

POSITIONS = "pos_embed"
INDEXES = "vision.deepstack_visual_indexes"

Corners = Sequence[tuple[Tensor, Tensor]]
"""Four times: rows of the table i32 [n], and their weights f32 [n]."""


@dataclass(frozen=True, kw_only=True)
class VisionOptions(BlockTowerOptions):
    grid: int
    """Side of the table of position embeddings."""
    deepstack: Mapping[int, str]
    """Blocks whose hidden states become features, in ascending order -> names of what merges them."""

    @property
    def n_positions(self) -> int:
        """Rows of the table of position embeddings."""
        return self.grid**2

    @property
    def frames(self) -> int:
        """How deep a patch is; a still picture is both frames."""
        return 2

    @property
    def n_kernels(self) -> int:
        """Kernels over a patch in Ollama's files: one for each number of an embedding and each colour."""
        return self.n_embd * self.n_channels


def read_options(metadata: Metadata, n_text: int, weights: Mapping[str, Tensor]) -> VisionOptions:
    """Options of the vision part; sizes that few files say are those of its `weights`. Raises ModelFormatError."""
    up, table = weights.get("v.blk.0.mlp.linear_fc1.weight"), weights.get(f"v.{POSITIONS}.weight")
    sizes = read_block_tower(metadata, n_text, 0 if up is None else up.dim(1), 1e-6)
    n_positions = 0 if table is None else table.dim(1)
    if n_positions < 1 or math.isqrt(n_positions) ** 2 != n_positions:
        raise ModelFormatError(f"v.{POSITIONS}.weight has {n_positions} rows, expected a square number")
    return VisionOptions(
        **sizes,
        grid=math.isqrt(n_positions),
        deepstack=_read_deepstack(metadata, sizes["n_layer"], weights),
    )


def _read_deepstack(metadata: Metadata, n_layer: int, weights: Mapping[str, Tensor]) -> dict[int, str]:
    """See `VisionOptions.deepstack`. llama.cpp's files say it by names of tensors, Ollama's by a list of blocks."""
    named = {int(found[1]) for name in weights if (found := re.match(r"v\.deepstack\.(\d+)\.", name))}
    listed = [] if named else metadata.list(INDEXES, [])
    blocks = sorted(named) or listed
    if not all(type(i) is int and 0 <= i < n_layer for i in blocks) or len({*blocks}) < len(blocks):
        source = "tensors v.deepstack" if named else metadata.key(INDEXES)
        raise ModelFormatError(f"{source}: {blocks}, expected different numbers of blocks below {n_layer}")
    if named:
        return {i: f"deepstack.{i}" for i in blocks}
    return {i: f"deepstack_merger.{blocks.index(i)}" for i in sorted(blocks)}


class OneKernel(nn.Module):
    """Embeddings of patches by a kernel over both frames, of which one tensor has all."""

    kernel = nn.Weight("patch_embed", "patch_size", "patch_size", "frames", "n_kernels")
    bias = nn.Vector("patch_embed.bias", "n_embd")

    def forward(self, patches: Tensor, o: VisionOptions) -> Tensor:
        """Patches f32 [channels * patch_size^2, n] -> f32 [n_embd, n]."""
        area, n = o.patch_size**2, patches.dim(1)
        both = ops.repeat(ops.reshape(patches, area, 1, o.n_channels, n), area, o.frames, o.n_channels, n)
        both = ops.reshape(both, area * o.frames * o.n_channels, n)
        kernel = vision.in_graph(self.kernel.tensor, both, both.dim(0), o.n_embd)
        return vision.wide_product(kernel, both, self.bias.tensor, stored=self.kernel.tensor)


class TwoKernels(nn.Module):
    """Embeddings of patches by a kernel for each frame."""

    first_frame = vision.PatchEmbedding("patch_embed_0")
    second_frame = vision.PatchEmbedding("patch_embed_1")
    bias = nn.Vector("patch_embed.bias", "n_embd")

    def forward(self, patches: Tensor, o: VisionOptions) -> Tensor:
        """Patches f32 [channels * patch_size^2, n] -> f32 [n_embd, n]."""
        return self.first_frame(patches) + self.second_frame(patches) + self.bias.tensor


def make_patch_embedding(scope: nn.Scope) -> OneKernel | TwoKernels:
    """The kind that the file has."""
    return TwoKernels(scope) if f"{scope.prefix}patch_embed_0.weight" in scope.weights else OneKernel(scope)


class PositionTable(nn.Embedding):
    """Embeddings of the places of a grid."""

    def between(self, corners: Corners) -> Tensor:
        """The weighted sums of four of them, f32 [n_embd, n]."""
        total: Tensor | None = None
        for place, weight in corners:
            part = nn.scaled_rows(self(place), ops.reshape(weight, 1, 1, weight.dim(0)))
            total = part if total is None else total + part
        assert total is not None, "a patch lies between four places"
        return total


class SplitProjection(nn.Module):
    q = nn.Linear("attn_q", "n_embd", "n_embd")
    k = nn.Linear("attn_k", "n_embd", "n_embd")
    v = nn.Linear("attn_v", "n_embd", "n_embd")

    def forward(self, x: Tensor) -> list[Tensor]:
        """x [n_embd, n] -> queries, keys and values, [n_embd, n] each."""
        return [vision.wide_product(p.tensor, x, p.bias) for p in (self.q, self.k, self.v)]


class JoinedProjection(nn.Module):
    qkv = nn.Linear("attn_qkv", "n_embd", "n_embd_thrice")

    def forward(self, x: Tensor) -> list[Tensor]:
        """x [n_embd, n] -> queries, keys and values, [n_embd, n] each."""
        return columns(vision.wide_product(self.qkv.tensor, x, self.qkv.bias), *(x.dim(0),) * 3)


def make_projection(scope: nn.Scope) -> SplitProjection | JoinedProjection:
    """The kind that the file has."""
    return (JoinedProjection if f"{scope.prefix}attn_qkv.weight" in scope.weights else SplitProjection)(scope)


class RotatedAttention(nn.Module):
    """Attention of all patches to all."""

    projection = nn.Part[Any](make_projection)
    output = nn.Linear("attn_out", "n_embd", "n_embd")

    def normed(self, q: Tensor, k: Tensor, o: BlockTowerOptions) -> tuple[Tensor, Tensor]:
        """Queries and keys [head_dim, heads, n] as they are; a subclass normalizes them."""
        return q, k

    def forward(self, x: Tensor, positions: Tensor, o: BlockTowerOptions) -> Tensor:
        """x [n_embd, n], positions i32 [n, 4] -> [n_embd, n]."""
        q, k, v = (ops.reshape(t, o.head_dim, o.n_head, x.dim(1)) for t in self.projection.forward(x))
        q, k = (rotate(heads, positions, o.rope_base) for heads in self.normed(q, k, o))
        out = vision.full_attention(q, k, v, o.attention_scale, parts=vision.parts_for(self.output.tensor))
        return vision.wide_product(self.output.tensor, out, self.output.bias)


class TanhMLP(vision.TowerMLP):
    fc1 = nn.Linear("mlp.linear_fc1", "n_embd", "n_ff")
    fc2 = nn.Linear("mlp.linear_fc2", "n_ff", "n_embd")


class Block(nn.Module):
    """One block: attention, then feed-forward, each after a norm and with a residual."""

    attn_norm: nn.Norm = nn.LayerNorm("norm1", "n_embd")
    attention = nn.Part(RotatedAttention)
    mlp_norm: nn.Norm = nn.LayerNorm("norm2", "n_embd")
    mlp: nn.Part[Any] = nn.Part(TanhMLP)

    def forward(self, x: Tensor, positions: Tensor, o: BlockTowerOptions) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        x = self.attention.forward(self.attn_norm(x, o.norm_eps), positions, o) + x
        out: Tensor = self.mlp.forward(self.mlp_norm(x, o.norm_eps)) + x
        return out


class BlockMerger(nn.Module):
    """The patches of a block, normalized and joined, become one embedding."""

    norm = nn.LayerNorm("norm", "n_embd")
    up = nn.Linear("linear_fc1", "n_merged", "n_merged")
    down = nn.Linear("linear_fc2", "n_merged", "n_text")

    def joined(self, x: Tensor, o: VisionOptions) -> Tensor:
        """x [n_embd, n] -> [n_merged, n / merge^2]."""
        return ops.reshape(self.norm(x, o.norm_eps), o.n_merged, x.dim(1) // o.merge**2)

    def forward(self, x: Tensor, o: VisionOptions) -> Tensor:
        """x [n_embd, n] -> [n_text, n / merge^2]."""
        x = nn.gelu_erf(vision.wide_product(self.up.tensor, self.joined(x, o), self.up.bias), self.up.tensor)
        return vision.wide_product(self.down.tensor, x, self.down.bias)


class FeatureMerger(BlockMerger):
    """The same with a norm over joined patches."""

    norm = nn.LayerNorm("norm", "n_merged")

    def joined(self, x: Tensor, o: VisionOptions) -> Tensor:
        """x [n_embd, n] -> [n_merged, n / merge^2]."""
        return self.norm(ops.reshape(x, o.n_merged, x.dim(1) // o.merge**2), o.norm_eps)


class Tower(nn.Module):
    """Patches to embeddings. Tensors below `v.`."""

    patch_embedding = nn.Part[Any](make_patch_embedding)
    table = PositionTable(POSITIONS, "n_embd", "n_positions")
    blocks = nn.Blocks(Block, "n_layer")
    merger = nn.Part(BlockMerger, "merger")

    def __init__(self, scope: nn.Scope) -> None:
        super().__init__(scope)
        self.features = {i: FeatureMerger(scope.below(name)) for i, name in scope.options.deepstack.items()}

    def forward(self, patches: Tensor, positions: Tensor, corners: Corners, o: VisionOptions) -> Tensor:
        """The embeddings of an image, row by row, and features behind each.

        Args:
            patches: f32 [channels * patch_size^2, n], block by block.
            positions: i32 [n, 4], row, column and two axes more that nothing turns by.
            corners: the four places of the table around each patch.
            o: the options.

        Returns:
            f32 [n_text * (1 + blocks with features), n / merge^2].
        """
        x = self.patch_embedding.forward(patches, o) + self.table.between(corners)
        features = []
        for i, block in enumerate(self.blocks):
            x = block.forward(x, positions, o)
            if i in self.features:
                features.append(self.features[i].forward(x, o))
        out = self.merger.forward(x, o)
        for part in features:
            out = ops.concat(out, part, 0)
        return out
