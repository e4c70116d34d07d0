"""LFM2-VL's image input: arrays, tokens around tiles, embeddings.

A picture stands between <|image_start|> and <|image_end|>. One in tiles has <|img_row_1_col_1|> and so on before each,
and then <|img_thumbnail|> and the whole. Source: transformers' Lfm2VlProcessor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ollama_engine.input import Input, MediaItem, PreparedImage
from ollama_engine.ml import ops
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.lfm2_vl.preprocess import Preprocessor
from ollama_engine.models.lfm2_vl.vision import VisionOptions, VisionPart, read_options
from ollama_engine.models.tiled import TiledMultimodal

if TYPE_CHECKING:
    from ollama_engine.ml.graph.context import Context


class Lfm2Multimodal(TiledMultimodal):
    placeholder = image_token = "<image>"
    part = VisionPart
    preparation = Preprocessor
    read_options = staticmethod(read_options)
    options: VisionOptions

    def encode_multimodal(self, ctx: Context, image: PreparedImage) -> Tensor:
        """The graph of the vision part: f32 [n_embd, n_inputs], the tiles and then the whole picture."""
        columns = {"tiles": self.options.tile_size // self.options.patch_size, "whole": image.grid[2]}
        parts = [self.encode(ctx, image, name, columns[name]) for name in columns if name in image.arrays]
        return parts[0] if len(parts) == 1 else ops.concat(parts[0], parts[1], 1)

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
