"""LFM2-VL's image input: arrays, tokens around tiles, embeddings.

A picture stands between <|image_start|> and <|image_end|>. One in tiles has <|img_row_1_col_1|> and so on before each,
and then <|img_thumbnail|> and the whole. Source: transformers' Lfm2VlProcessor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ollama_engine import nn
from ollama_engine.input import Input, MediaItem, PreparedImage
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.images import encode_tiles
from ollama_engine.models.lfm2_vl.preprocess import Preprocessor
from ollama_engine.models.lfm2_vl.vision import VisionPart, read_options
from ollama_engine.models.tiled import TileTokens

if TYPE_CHECKING:
    from ollama_engine.ml.graph.context import Context


class Lfm2Multimodal(TileTokens):
    placeholder = image_token = "<image>"

    def __init__(self, metadata: Metadata, scope: nn.Scope) -> None:
        """`scope`: all weights of the file, with the options of the text model."""
        self.options = options = read_options(metadata, scope)
        super().__init__(metadata, scope, options.n_tokens, Preprocessor(metadata, options))
        self.vision = VisionPart(nn.Scope(scope.weights, options, used=scope.used))

    def encode_multimodal(self, ctx: Context, image: PreparedImage) -> Tensor:
        """The graph of the vision part: f32 [n_embd, n_inputs], the tiles and then the whole picture."""
        o = self.options
        parts = [
            self._part(ctx, image, name, columns)
            for name, columns in (("tiles", o.tile_size // o.patch_size), ("whole", image.grid[2]))
            if name in image.arrays
        ]
        return parts[0] if len(parts) == 1 else ops.concat(parts[0], parts[1], 1)

    def _part(self, ctx: Context, image: PreparedImage, name: str, columns: int) -> Tensor:
        places = ctx.from_floats(image.arrays[f"{name}_places"])
        pixels = np.asarray(image.arrays[name], np.float32)
        return encode_tiles(ctx, pixels, lambda patches: self.vision.forward(patches, places, columns, self.options))

    def image_inputs(self, item: MediaItem) -> list[Input]:
        """Its tiles and the whole, with tokens before each and around all."""
        rows, columns, whole = item.grid
        written = [self.token("<|image_start|>")]
        for tile in range(rows * columns):
            written.append(self.token(f"<|img_row_{tile // columns + 1}_col_{tile % columns + 1}|>"))
            written += self.tiles(item, tile, tile + 1)
        if whole:
            written += [self.token("<|img_thumbnail|>")] if rows else []
            written += self.rows(item, rows * columns * self.options.n_tokens, item.n_inputs)
        return [*written, self.token("<|image_end|>")]
