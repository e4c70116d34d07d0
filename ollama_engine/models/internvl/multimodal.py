"""InternVL's image input: arrays, embeddings of all tiles between <img> and </img>."""

from __future__ import annotations

from functools import partial

from ollama_engine import nn
from ollama_engine.input import Input, MediaItem
from ollama_engine.models.internvl.preprocess import Preprocessor
from ollama_engine.models.tiled import GeluProjector, TiledMultimodal, TiledPart, read_tiled


class VisionPart(TiledPart):
    projector = nn.Part(GeluProjector, "mm.model.mlp")


class InternVLMultimodal(TiledMultimodal):
    placeholder = image_token = "<IMG_CONTEXT>"
    part = VisionPart
    preparation = Preprocessor
    read_options = partial(read_tiled, activation="gelu")

    def image_inputs(self, item: MediaItem) -> list[Input]:
        """Its tiles, one after the other."""
        n_tiles = item.n_inputs // self.options.n_tokens
        return [self.token("<img>"), *self.tiles(item, 0, n_tiles), self.token("</img>")]
