"""Mistral 3's vision part: Pixtral's tower for images of any size, whose patches merge to embeddings of the text model.

Source: Agrawal et al. 2024 (Pixtral 12B, arXiv:2410.07073). Tensors below `v.` and `mm.`, as Ollama's converter names
them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.input import FloatArray
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.options import Options
from ollama_engine.nn import vision

PAIRS = "vision.rotates_pairs"
"""Key of files whose tower has queries and keys in the other order; any text."""
MERGER = "mm.patch_merger.merging_layer.weight"


@dataclass(frozen=True, kw_only=True)
class VisionOptions(vision.TowerOptions):
    merge: int
    """Side of the square of patches that becomes one embedding: a block."""
    rope_base: float
    pairs: bool
    """Whether rows of queries and keys are ordered so that neighbours turn together, not halves of a head."""
    text_eps: float
    """Epsilon of the projector's norm, which is that of the text model."""
    n_text: int
    """Length of an embedding of the text model."""

    @property
    def n_merged(self) -> int:
        """Length of the joined patches of a block."""
        return self.n_embd * self.merge**2

    @property
    def column_step(self) -> float:
        """Divisor of the columns' frequencies: rows and columns take turns in one falling series of them."""
        return float(self.rope_base ** (2 / self.head_dim))

    @property
    def divisors(self) -> FloatArray:
        """Divisors of each pair's angle, f32 [head_dim / 2]: first those of rows, then those of columns."""
        quarter = self.head_dim // 4
        return np.repeat(np.array([1, self.column_step], np.float32), quarter)


def read_options(metadata: Metadata, text: Options, *, merges: bool = True) -> VisionOptions:
    """Options of the vision part; `merges`: whether the file has the matrix that merges patches, as Pixtral 12B has
    not. Raises ModelFormatError.
    """
    sizes = vision.read_tower(metadata, eps=1e-5)
    head_dim = sizes["n_embd"] // sizes["n_head"]
    if head_dim % 4 or metadata.u32("vision.attention.key_length", head_dim) != head_dim:
        raise ModelFormatError(
            f"heads of the vision tower have {head_dim} dimensions (vision.embedding_length / "
            "vision.attention.head_count); expected a multiple of 4 that equals vision.attention.key_length"
        )
    merge = metadata.u32("spatial_merge_size", 2 if merges else 1)
    if merge < 1 or (merge > 1 and not merges):
        raise ModelFormatError(
            f"{metadata.key('spatial_merge_size')} is {merge}; expected the side of a square of patches that become "
            f"one embedding, 1 in a file without tensor {MERGER}"
        )
    return VisionOptions(
        **sizes,
        merge=merge,
        rope_base=nn.check_base("vision.rope.freq_base", metadata.f32("vision.rope.freq_base", 10000.0)),
        pairs=metadata.str(PAIRS, "") != "",
        text_eps=text.norm_eps,
        n_text=text.n_embd,
    )


def rotate(heads: Tensor, positions: Tensor, divisors: Tensor, o: VisionOptions) -> Tensor:
    """Queries or keys [head_dim, heads, n] at positions i32 [n, 4]: half of the pairs turns by the row, half by the
    column of a patch.
    """
    half, n = o.head_dim // 2, heads.dim(2)
    if not o.pairs:
        sections = (half // 2, half // 2)
        return ops.rope_multi(heads, positions, half, sections, mode="vision", factors=divisors, freq_base=o.rope_base)
    row, column = (ops.view(positions, (n,), offset=axis * positions.stride(1)) for axis in range(2))
    heads = ops.rope(heads, row, half, freq_base=o.rope_base)
    return ops.rope(heads, column, half, offset=half, freq_base=o.rope_base, freq_scale=1 / o.column_step)


class Block(vision.TowerBlock):
    """One block: attention, then SwiGLU, each after a norm and with a residual."""

    attn_norm = nn.RMSNorm("attn_norm", "n_embd")
    mlp_norm = nn.RMSNorm("ffn_norm", "n_embd")
    mlp = nn.Part(vision.GatedTowerMLP)


class Tower(nn.Module):
    """Patches to hidden states. Tensors below `v.`."""

    patch_embedding = vision.PatchEmbedding("patch_conv")
    norm = nn.RMSNorm("encoder_norm", "n_embd")
    blocks = nn.Blocks(Block, "n_layer")

    def forward(self, patches: Tensor, positions: Tensor, divisors: Tensor, o: VisionOptions) -> Tensor:
        """Patches f32 [channels * patch_size^2, n] -> f32 [n_embd, n]."""
        x = self.norm(self.patch_embedding(patches), o.norm_eps)
        for block in self.blocks:
            x = block.forward(x, o, rotate=lambda heads: rotate(heads, positions, divisors, o))
        return x


class Merger(nn.Module):
    """The patches of a block, joined, become one of the tower's size. Pixtral 12B has none."""

    merging = nn.Linear("merging_layer", "n_merged", "n_embd", optional=True)

    def forward(self, x: Tensor, o: VisionOptions) -> Tensor:
        """x [n_embd, n] block by block -> [n_embd, n / merge^2]. A channel's patches are neighbours in the weight."""
        if not self.merging:
            return x
        size = o.merge**2
        x = ops.cont(ops.permute(ops.reshape(x, o.n_embd, size, x.dim(1) // size), 1, 0, 2, 3))
        return vision.wide_product(self.merging.tensor, ops.reshape(x, o.n_merged, x.dim(2)))


class Projector(nn.Module):
    """Hidden states of patches to embeddings of the text model. Tensors below `mm.`."""

    norm = nn.RMSNorm("norm", "n_embd", optional=True)
    merger = nn.Part(Merger, "patch_merger")
    linear_1 = nn.Linear("linear_1", "n_embd", "n_text")
    linear_2 = nn.Linear("linear_2", "n_text", "n_text")

    def forward(self, x: Tensor, o: VisionOptions) -> Tensor:
        """x [n_embd, n] -> f32 [n_text, n / merge^2]."""
        if self.norm:
            x = self.norm(x, o.text_eps)
        x = vision.wide_product(self.linear_1.tensor, self.merger.forward(x, o), self.linear_1.bias)
        x = nn.gelu_erf(x, self.linear_1.tensor)
        return vision.wide_product(self.linear_2.tensor, x, self.linear_2.bias)


class VisionPart(nn.Module):
    """Everything that a file has for reading images."""

    tower = nn.Part(Tower, "v")
    projector = nn.Part(Projector, "mm")

    def forward(self, patches: Tensor, positions: Tensor, divisors: Tensor, o: VisionOptions) -> Tensor:
        """The embeddings of an image, row by row.

        Args:
            patches: f32 [channels * patch_size^2, n], block by block.
            positions: i32 [n, 4], row, column and two axes more that nothing turns by.
            divisors: `VisionOptions.divisors`.
            o: the options.

        Returns:
            f32 [n_text, n / merge^2].
        """
        return self.projector.forward(self.tower.forward(patches, positions, divisors, o), o)
