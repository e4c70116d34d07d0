"""The vision part of Gemma 4's 12B model ("unified"), which has no tower: a block's pixels become an embedding at once.

Tensors below `v.` and `mm.`, as llama.cpp names them. Source: transformers' Gemma4UnifiedVisionEmbedder.
"""

from __future__ import annotations

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.gemma4.vision import PlaceEmbedding, VisionOptions
from ollama_engine.nn import vision

FIRST_NORM = "v.patch_norm.1.weight"
"""A tensor that only such a part has."""
EPS = 1e-5
"""That of torch's LayerNorm; the file has the one of the last norm."""


def read_unified_options(metadata: Metadata, n_text: int, n_positions: int) -> VisionOptions:
    """Options of the part: patches as large as a block, and no layers. Raises ModelFormatError."""
    n_embd, patch, pool = (
        metadata.u32("vision.embedding_length"), metadata.u32("vision.patch_size"),
        metadata.u32("vision.projector.scale_factor", 3),
    )  # fmt: skip
    if min(n_embd, patch, pool) < 1:
        raise ModelFormatError(
            f"vision.embedding_length {n_embd}, vision.patch_size {patch} and vision.projector.scale_factor {pool} "
            "must not be 0"
        )
    return VisionOptions(
        n_layer=0, n_embd=n_embd, n_ff=0, n_head=1, norm_eps=metadata.f32("vision.attention.layer_norm_epsilon", 1e-6),
        patch_size=patch * pool, pool=1, n_positions=n_positions, n_text=n_text,
    )  # fmt: skip


class UnifiedPart(nn.Module):
    """Everything that a file has for reading images."""

    norm_1 = nn.LayerNorm("v.patch_norm.1", "n_pixels")
    embedding = nn.Linear("v.patch_embd", "n_pixels", "n_embd")
    norm_2 = nn.LayerNorm("v.patch_norm.2", "n_embd")
    place_embedding = PlaceEmbedding("v.position_embd", "n_embd", "n_positions", 2)
    norm_3 = nn.LayerNorm("v.patch_norm.3", "n_embd")
    projection = nn.Linear("mm.input_projection", "n_embd", "n_text")

    def forward(self, patches: Tensor, places: tuple[Tensor, Tensor], columns: int, o: VisionOptions) -> Tensor:
        """See `vision.VisionPart`; patches are blocks."""
        x = vision.wide_product(self.embedding.tensor, self.norm_1(patches, EPS), self.embedding.bias)
        x = self.norm_3(self.norm_2(x, EPS) + self.place_embedding.of(places), EPS)
        return vision.wide_product(self.projection.tensor, ops.rms_norm(x, o.norm_eps))
