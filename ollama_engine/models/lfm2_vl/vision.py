"""LFM2-VL's vision part: SigLIP 2's tower for pictures of any shape (NaFlex, Tschannen et al. 2025), and a projector.

The tower has a table of positions for a square of patches, which is stretched over each picture.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.input import FloatArray
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.tiled import GeluProjector, TiledOptions, TiledPart, read_merging

TILE_SIZE = 512
"""Side of a tile in all published models; llama.cpp's files do not say."""


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


class Projector(GeluProjector):
    norm = nn.LayerNorm("input_norm", "n_merged", optional=True)
    first = nn.Linear("1", "n_merged", "n_hidden")
    second = nn.Linear("2", "n_hidden", "n_text")


class VisionPart(TiledPart):
    projector = nn.Part(Projector, "mm")
