"""LFM2-VL's vision part: SigLIP 2's tower for pictures of any shape (NaFlex, Tschannen et al. 2025), and a projector.

The tower has a table of positions for a square of patches, which is stretched over each picture.
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
from ollama_engine.models.tiled import TiledOptions, read_merging
from ollama_engine.nn import clip, vision

TILE_SIZE = 512
"""Side of a tile in all published models; llama.cpp's files do not say."""
PROJECTOR_EPS = 1e-5
"""torch's default, which the published projector has."""


@dataclass(frozen=True, kw_only=True)
class VisionOptions(TiledOptions):
    n_hidden: int
    """Length of an embedding between the two products of the projector."""
    tile_size: int
    """Side of a tile in pixels. `image_size` is that of the table of positions."""

    @property
    def block(self) -> int:
        """Side in pixels of the square of patches that becomes one embedding."""
        return self.patch_size * self.merge

    @property
    def n_tokens(self) -> int:
        """Embeddings of a tile."""
        return (self.tile_size // self.block) ** 2


def read_options(metadata: Metadata, scope: nn.Scope) -> VisionOptions:
    """Options of the vision part; `scope`: all weights, with the options of the text model. Raises ModelFormatError."""
    fields = read_merging(metadata, scope, "gelu_tanh")
    hidden = scope.weights.get("mm.1.weight")
    if hidden is None:
        raise ModelFormatError("the file has no tensor mm.1.weight, which a part that reads images has")
    block = fields["patch_size"] * fields["merge"]
    tile_size = metadata.u32("vision.tile_size", TILE_SIZE // block * block)
    o = VisionOptions(**fields, n_hidden=hidden.dim(1), tile_size=tile_size)
    if o.tile_size < 1 or o.tile_size % o.block:
        raise ModelFormatError(f"{metadata.key('vision.tile_size')} is {o.tile_size}; expected a multiple of {o.block}")
    return o


def stretched(rows: int, columns: int, o: VisionOptions) -> FloatArray:
    """Which part of each place of the table the patches of a picture have, f32 [rows * columns, n_places].

    Bilinear, and smoothed where the picture has fewer patches than the table: torch's `interpolate` with `antialias`.
    """
    return np.kron(_resampling(rows, o.grid), _resampling(columns, o.grid)).astype(np.float32)


def _resampling(n: int, places: int) -> FloatArray:
    """f32 [n, places]."""
    scale = np.float32(places / n)
    middles = (np.arange(n, dtype=np.float32) + np.float32(0.5)) * scale
    distances = np.abs(np.arange(places, dtype=np.float32) + np.float32(0.5) - middles[:, None])
    parts = np.maximum(1 - distances / max(scale, np.float32(1)), 0)
    found: FloatArray = parts / parts.sum(axis=1, keepdims=True)
    return found


class Tower(clip.ClipTower):
    """Patches of any shape of picture to hidden states. Tensors below `v.`."""

    post_norm = nn.LayerNorm("post_layernorm", "n_embd")

    def read(self, patches: Tensor, places: Tensor, o: VisionOptions) -> Tensor:
        """Patches f32 [channels * patch_size^2, n, tiles], places f32 [n_places, n] (`stretched`) -> f32 [n_embd, n,
        tiles].
        """
        x = self.patch_embedding(patches)
        table = clip.as_f32(self.position_embedding.tensor, x, o.n_embd, o.n_places)
        x = x + ops.mul_mat(ops.cont(ops.transpose(table)), places)
        for block in self.blocks:
            x = block.forward(x, o)
        return self.post_norm(x, o.norm_eps)


class VisionPart(nn.Module):
    """Everything that a file has for reading images."""

    tower = nn.Part(Tower, "v")
    norm = nn.LayerNorm("mm.input_norm", "n_merged", optional=True)
    first = nn.Linear("mm.1", "n_merged", "n_hidden")
    second = nn.Linear("mm.2", "n_hidden", "n_text")

    def forward(self, patches: Tensor, places: Tensor, columns: int, o: VisionOptions) -> Tensor:
        """Patches and places as `Tower.read`, `columns` of patches to a row -> f32 [n_text, n / merge^2 * tiles]."""
        x = vision.join_squares(self.tower.read(patches, places, o), columns, o.merge)
        if self.norm:
            x = self.norm(x, PROJECTOR_EPS)
        x = clip.activate("gelu", self.first.tensor, x, self.first.bias)
        return vision.wide_product(self.second.tensor, x, self.second.bias)
