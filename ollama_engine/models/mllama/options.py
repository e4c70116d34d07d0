"""Options of Llama 3.2 Vision: sizes and constants of its text part and of its vision tower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.options import MAX_LAYERS, Options, extended, read_common
from ollama_engine.multimodal.pixels import CLIP_MEAN, CLIP_STD
from ollama_engine.nn.vision import TowerOptions, read_normalization, read_tower

INPUT_ROWS = 8
"""Rows of the published embeddings that are no logits."""

MAX_TILES = 64


@dataclass(frozen=True, kw_only=True)
class TextOptions(Options):
    """Options of the text part. `n_vocab` counts the rows of the embedding, which has eight more than there are logits.

    These are inputs only: the image's token is one of them.
    """

    n_logits: int
    cross_layers: frozenset[int]
    """Numbers of the layers with cross-attention in place of self-attention."""
    cross_pairs: bool
    """Whether queries and keys of cross-attention lie as pairs of neighbours, though the weights of their norms do not.

    So in files of Ollama's converter, which lack our key `image_token_id`.
    """


def read_text(metadata: Metadata, n_vocab: int) -> TextOptions:
    """Raises ModelFormatError."""
    o = read_common(metadata, n_vocab, rope_mode="norm")
    cross = _layers(metadata, "attention.cross_attention_layers", o.n_layer)
    n_logits = metadata.u32("vocab_size", n_vocab - INPUT_ROWS)
    if not 1 <= n_logits <= n_vocab:
        raise ModelFormatError(f"the token embedding has {n_vocab} rows, expected at least vocab_size {n_logits}")
    pairs = "vision.block_count" in metadata and "image_token_id" not in metadata
    return extended(o, TextOptions, n_logits=n_logits, cross_layers=frozenset(cross), cross_pairs=pairs)


@dataclass(frozen=True, kw_only=True)
class VisionOptions(TowerOptions):
    """Options of the vision tower; `n_layer` counts its local layers."""

    n_global_layer: int
    tile_size: int
    """Pixels along the side of a tile."""
    max_tiles: int
    kept_layers: tuple[int, ...]
    """Layers whose inputs are part of the result."""
    n_text: int
    """Length of a hidden state of the text part."""
    mean: tuple[float, ...]
    """Mean of the normalization of pictures, for red, green and blue."""
    std: tuple[float, ...]

    @property
    def n_patches(self) -> int:
        """Patches of one tile."""
        return (self.tile_size // self.patch_size) ** 2

    @property
    def n_places(self) -> int:
        """Rows of one tile: its class embedding, then its patches."""
        return self.n_patches + 1

    @property
    def tile_row(self) -> int:
        """Numbers in an embedding of tiles: one vector for each."""
        return self.max_tiles * self.n_embd

    @property
    def place_row(self) -> int:
        """Numbers in an embedding of places in tiles: one vector for each place of each tile."""
        return self.max_tiles * self.n_places * self.n_embd

    @property
    def n_ratios(self) -> int:
        """Aspect ratios that have embeddings. Row 0 is for images that are not there."""
        return 1 + len(self.ratios)

    @property
    def ratios(self) -> list[tuple[int, int]]:
        """All (rows, columns) of at most `max_tiles` tiles, in the order of their embeddings."""
        return tile_grids(self.max_tiles)

    @property
    def n_features(self) -> int:
        """Numbers in a row that the projector takes: the last hidden state and those kept."""
        return self.n_embd * (1 + len(self.kept_layers))

    @property
    def image_rows(self) -> int:
        """Embeddings of an image with all its tiles."""
        return self.max_tiles * self.n_places


def tile_grids(max_tiles: int) -> list[tuple[int, int]]:
    """All (rows, columns) of at most `max_tiles` tiles, by rows first."""
    return [(rows, columns) for rows in range(1, max_tiles + 1) for columns in range(1, max_tiles // rows + 1)]


def read_vision(metadata: Metadata) -> VisionOptions:
    """Raises ModelFormatError."""
    sizes = read_tower(metadata, eps=1e-5)
    mean, std = read_normalization(metadata, CLIP_MEAN, CLIP_STD)
    o = VisionOptions(
        **sizes,
        n_global_layer=metadata.u32("vision.global.block_count"),
        tile_size=metadata.u32("vision.image_size"),
        max_tiles=metadata.u32("vision.max_num_tiles", 4),
        kept_layers=tuple(_layers(metadata, "vision.intermediate_layers_indices", sizes["n_layer"])),
        n_text=metadata.u32("embedding_length"),
        mean=tuple(mean),
        std=tuple(std),
    )
    _check(o)
    return o


def _check(o: VisionOptions) -> None:
    if o.n_global_layer > MAX_LAYERS or not 1 <= o.max_tiles <= MAX_TILES:
        raise ModelFormatError(
            f"vision.global.block_count is at most {MAX_LAYERS}, got {o.n_global_layer}; vision.max_num_tiles is 1 to "
            f"{MAX_TILES}, got {o.max_tiles}"
        )
    if o.tile_size < o.patch_size or o.tile_size % o.patch_size:
        raise ModelFormatError(f"vision.image_size {o.tile_size} is no multiple of vision.patch_size {o.patch_size}")


def _layers(metadata: Metadata, name: str, n_layer: int) -> Sequence[int]:
    """A list of numbers of layers."""
    found: list[Any] = metadata.list(name)
    if not all(type(number) is int and 0 <= number < n_layer for number in found):
        raise ModelFormatError(f"{metadata.key(name)} has numbers of layers below {n_layer}, got {found}")
    return found
