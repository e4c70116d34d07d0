"""Llama 4's image input: arrays, tokens around tiles, embeddings.

An image with several tiles is written row by row, each row of tiles with separators between them and another behind it.
Then comes the whole picture behind "<|image|>"; an image of one tile is that last part alone. Source: transformers'
Llama4Processor.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.input import Input, MediaItem, PreparedImage
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.images import ImageTokens, input_ids, rows_of
from ollama_engine.models.llama4.preprocess import Preprocessor
from ollama_engine.models.llama4.vision import VisionPart, read_options
from ollama_engine.models.media_tokens import token_id, token_named

if TYPE_CHECKING:
    from ollama_engine.ml.graph.context import Context

IMAGE = "<|image|>"
ADAPTER = "v.vision_adapter.mlp.fc2.weight"
"""Tells the width of the adapter, which no key has."""


@dataclass(frozen=True)
class TileTokens:
    """Ids of the tokens that an image is written with."""

    begin: int
    end: int
    patch: int
    """Stands where an embedding is."""
    between: int
    """Between two tiles of a row."""
    row_end: int
    """Behind each row of tiles."""
    whole: int
    """Before the whole picture."""


class Llama4Multimodal(ImageTokens):
    placeholder = IMAGE

    def __init__(self, metadata: Metadata, scope: nn.Scope) -> None:
        """`scope`: all weights of the file, with the options of the text model."""
        if ADAPTER not in scope.weights:
            raise ModelFormatError(f"the file has no tensor {ADAPTER}, which a part that reads images has")
        self.options = read_options(metadata, scope.options.n_embd, scope.weights[ADAPTER].dim(1))
        self.vision = VisionPart(nn.Scope(scope.weights, self.options, used=scope.used))
        super().__init__(Preprocessor(metadata, self.options))
        self._metadata = metadata
        self._n_ids = input_ids(scope)

    @cached_property
    def tokens(self) -> TileTokens:
        """The tokens of images, looked up with the first one. Raises ModelFormatError where the file lacks one."""
        n_ids = self._n_ids
        return TileTokens(
            begin=token_id(self._metadata, "image_start_token_id", "<|image_start|>", n_ids),
            end=token_id(self._metadata, "image_end_token_id", "<|image_end|>", n_ids),
            patch=token_id(self._metadata, "image_token_id", "<|patch|>", n_ids),
            between=token_named(self._metadata, "<|tile_x_separator|>", n_ids),
            row_end=token_named(self._metadata, "<|tile_y_separator|>", n_ids),
            whole=token_named(self._metadata, IMAGE, n_ids),
        )

    def encode_multimodal(self, ctx: Context, image: PreparedImage) -> Tensor:
        """The graph of the vision part: f32 [n_embd, n_inputs], tile after tile."""
        return self.vision.forward(ctx, np.asarray(image.arrays["tiles"], np.float32), self.options)

    def image_inputs(self, item: MediaItem) -> list[Input]:
        """Its tiles, with tokens between them and around them."""
        rows, columns = item.grid
        tokens = self.tokens
        written = [Input(tokens.begin)]
        if rows * columns > 1:
            for tile in range(rows * columns):
                ends_row = (tile + 1) % columns == 0
                written += [*self._tile(item, tile), Input(tokens.row_end if ends_row else tokens.between)]
        last = item.n_inputs // self.options.n_tokens - 1
        return [*written, Input(tokens.whole), *self._tile(item, last), Input(tokens.end)]

    def _tile(self, item: MediaItem, tile: int) -> list[Input]:
        """All parts of an image share one encoding. So a batch needs no more of it than it has room for."""
        n = self.options.n_tokens
        return rows_of(item.part(tile * n, (tile + 1) * n), self.tokens.patch)
