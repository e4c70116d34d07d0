"""Idefics 3's image input: arrays, tokens around tiles, embeddings.

Before each tile stand <fake_token_around_image> and its place, such as <row_1_col_2>; a newline ends a row of tiles.
The whole picture comes last, behind another newline and <global-img>, and ends with <fake_token_around_image>. A
picture of one tile is that last part without the newline. Source: transformers' Idefics3Processor.
"""

from __future__ import annotations

from functools import cached_property

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.input import Input, MediaItem
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.idefics3.preprocess import Preprocessor
from ollama_engine.models.media_tokens import newline_runs, split_run
from ollama_engine.models.tiled import TiledMultimodal, TiledOptions, TiledPart, read_tiled
from ollama_engine.nn import vision


class Projector(nn.Module):
    """Joined patches to embeddings of the text model."""

    fc = nn.Linear("fc", "n_merged", "n_text")

    def forward(self, x: Tensor, o: TiledOptions) -> Tensor:
        """x [n_merged, n] -> f32 [n_text, n]."""
        return vision.wide_product(self.fc.tensor, x)


class VisionPart(TiledPart):
    projector = nn.Part(Projector, "mm.model")


class Idefics3Multimodal(TiledMultimodal):
    placeholder = image_token = "<image>"
    part = VisionPart
    preparation = Preprocessor
    read_options = staticmethod(read_tiled)

    def image_inputs(self, item: MediaItem) -> list[Input]:
        """Its tiles, with tokens between them and around them."""
        rows, columns = item.grid
        border = self.token("<fake_token_around_image>")
        written: list[Input] = []
        for row in range(rows):
            for column in range(columns):
                tile = row * columns + column
                place = self.token(f"<row_{row + 1}_col_{column + 1}>")
                written += [border, place, *self.tiles(item, tile, tile + 1)]
            written += self._newlines(1 if row + 1 < rows else 2)
        last = rows * columns
        return [*written, border, self.token("<global-img>"), *self.tiles(item, last, last + 1), border]

    def _newlines(self, n: int) -> list[Input]:
        if 1 not in self._runs:
            raise ModelFormatError("the vocabulary has no token for a newline, which stands behind a row of tiles")
        return [Input(self._runs[length]) for length in split_run(n, self._runs)]

    @cached_property
    def _runs(self) -> dict[int, int]:
        return newline_runs(self._metadata)
