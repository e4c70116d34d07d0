"""InternVL's image input: arrays, embeddings of all tiles between <img> and </img>."""

from __future__ import annotations

from ollama_engine import nn
from ollama_engine.input import Input, MediaItem
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.internvl.preprocess import Preprocessor
from ollama_engine.models.tiled import TiledMultimodal, TiledOptions, TiledPart, read_tiled
from ollama_engine.nn import clip, vision

PROJECTOR_EPS = 1e-5
"""torch's default, which the published projector has."""


class Projector(nn.Module):
    """Joined patches to embeddings of the text model. Tensors below `mm.model.mlp.`."""

    norm = nn.LayerNorm("0", "n_merged")
    first = nn.Linear("1", "n_merged", "n_text")
    second = nn.Linear("3", "n_text", "n_text")

    def forward(self, x: Tensor, o: TiledOptions) -> Tensor:
        """x [n_merged, n] -> f32 [n_text, n]."""
        x = clip.activate("gelu", self.first.tensor, self.norm(x, PROJECTOR_EPS), self.first.bias)
        return vision.wide_product(self.second.tensor, x, self.second.bias)


class VisionPart(TiledPart):
    projector = nn.Part(Projector, "mm.model.mlp")


class InternVLMultimodal(TiledMultimodal):
    placeholder = image_token = "<IMG_CONTEXT>"
    part = VisionPart

    def __init__(self, metadata: Metadata, scope: nn.Scope) -> None:
        """`scope`: all weights of the file, with the options of the text model."""
        options = read_tiled(metadata, scope, "gelu")
        super().__init__(metadata, scope, options, Preprocessor(metadata, options))

    def image_inputs(self, item: MediaItem) -> list[Input]:
        """Its tiles, one after the other."""
        n_tiles = item.n_inputs // self.options.n_tokens
        return [self.token("<img>"), *self.tiles(item, 0, n_tiles), self.token("</img>")]
