"""Gemma 3's vision part: a SigLIP tower (Zhai et al. 2023), pooled to a few soft tokens of the text's size.

Tensors below `v.` and `mm.`, as Ollama's converter names them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.nn import vision


@dataclass(frozen=True, kw_only=True)
class VisionOptions(vision.SquareOptions):
    pool: int
    """Side of the square of patches that becomes one soft token."""
    n_text: int
    """Length of an embedding of the text model."""

    @property
    def n_tokens(self) -> int:
        """Soft tokens of an image."""
        return (self.grid // self.pool) ** 2


def read_options(metadata: Metadata, n_text: int) -> VisionOptions:
    """Options of the vision part. Raises ModelFormatError."""
    sizes = vision.read_tower(metadata, eps=1e-6)
    image_size = metadata.u32("vision.image_size")
    grid = image_size // sizes["patch_size"]
    return VisionOptions(**sizes, image_size=image_size, pool=_read_pool(metadata, grid), n_text=n_text)


def _read_pool(metadata: Metadata, grid: int) -> int:
    """llama.cpp's files say how many patches are pooled, Ollama's how many tokens come of it; both may be absent."""
    pool = metadata.u32("vision.projector.scale_factor", None)
    if pool is None:
        # Ollama's engine wrote the first name and read the second, so only its default was ever used.
        tokens = metadata.u32("mm.tokens_per_image", metadata.u32("mm_tokens_per_image", 256))
        side = math.isqrt(tokens)
        if side < 1 or side * side != tokens or grid % side:
            raise ModelFormatError(f"mm.tokens_per_image is {tokens}; expected the square of a divisor of {grid}, "
                                   "the patches along a side (vision.image_size / vision.patch_size)")  # fmt: skip
        pool = grid // side
    if pool < 1 or grid < 1 or grid % pool:
        raise ModelFormatError(
            f"vision.projector.scale_factor is {pool}; expected a divisor of {grid}, the patches along a side "
            "(vision.image_size / vision.patch_size)"
        )
    return pool


class Tower(nn.Module):
    """SigLIP: patches to hidden states. Tensors below `v.`."""

    patch_embedding = vision.PatchEmbedding("patch_embedding")
    position_embedding = nn.Embedding("position_embedding", "n_embd", "n_places")
    blocks = nn.Blocks(vision.TowerBlock, "n_layer")
    post_norm = nn.LayerNorm("post_layernorm", "n_embd")

    def forward(self, patches: Tensor, o: VisionOptions) -> Tensor:
        """Patches f32 [channels * patch_size^2, n_places] -> f32 [n_embd, n_places]."""
        x = self.patch_embedding(patches) + self.position_embedding.tensor
        for block in self.blocks:
            x = block.forward(x, o)
        return self.post_norm(x, o.norm_eps)


class Projector(nn.Module):
    """Hidden states of patches to soft tokens of the text model. Tensors below `mm.`."""

    norm = nn.RMSNorm("mm_soft_emb_norm", "n_embd")
    projection = nn.Weight("mm_input_projection", "n_text", "n_embd")
    """Multiplied from the right in the published model, and stored that way round."""

    def forward(self, x: Tensor, o: VisionOptions) -> Tensor:
        """x [n_embd, n_places] -> f32 [n_text, n_tokens]."""
        x = self.norm(vision.average_pool(x, o.grid, o.pool), o.norm_eps)
        matrix = vision.in_graph(self.projection.tensor, x, o.n_text, o.n_embd)
        return ops.mul_mat(ops.cont(ops.transpose(ops.cast(matrix, "f32"))), x)


class VisionPart(nn.Module):
    """Everything that a file has for reading images."""

    tower = nn.Part(Tower, "v")
    projector = nn.Part(Projector, "mm")

    def forward(self, patches: Tensor, o: VisionOptions) -> Tensor:
        """Patches f32 [channels * patch_size^2, n_places] -> f32 [n_text, n_tokens]."""
        return self.projector.forward(self.tower.forward(patches, o), o)
