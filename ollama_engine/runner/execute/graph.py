"""A built graph: its shape, its inputs, and the values that a step writes into them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ollama_engine.errors import ComputeError, ConfigError
from ollama_engine.input import Batch, BatchMedia, FloatArray, Int32Array, MediaItem, MediaTraits
from ollama_engine.kvcache import GraphInputs
from ollama_engine.kvcache.cells import MAX_SEQUENCES
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models import Embeds, Model, ModelInputs

__all__ = [
    "GraphShape",
    "InputSizes",
    "MediaRows",
    "StepGraph",
    "check_batch",
    "image_rows",
    "input_sizes",
    "make_inputs",
    "media_rows",
    "raise_error",
    "write_inputs",
]


class GraphShape(NamedTuple):
    """The sizes that shape a graph. A graph can be reused for a step of equal shape."""

    n_tokens: int
    n_outputs: int
    """Rows of logits."""
    n_embedded: int = 0
    """Rows that are embeddings of media."""
    n_image_rows: int = 0
    """Rows of new images for cross-attention."""
    n_best: int = 0
    """How many of the best logits of each row it finds; 0: it finds none."""
    cache: tuple[int, ...] = ()
    """The cache's `shape_key`."""


class InputSizes(NamedTuple):
    """The sizes of a model that shape the inputs of its graphs."""

    row_width: int = 0
    """Numbers in a row of media's embeddings."""
    axes: int = 1
    """Number of position axes."""
    image_rows: int = 0
    """Rows of one image for cross-attention."""
    types: bool = False
    """Whether tokens have types."""
    embedded: bool = False
    """Whether rows may be embeddings of media."""


@dataclass(slots=True)
class StepGraph:
    """A built graph and its inputs, except those of the cache."""

    shape: GraphShape
    ctx: Context
    inputs: ModelInputs
    of_cache: GraphInputs
    logits: Tensor | None
    """None where no row's logits are wanted."""
    hidden: Tensor | None = None
    """The hidden states that the logits are made of, f32 [n_embd, outputs]; None where they are not kept."""
    best: Tensor | None = None
    """The result of `best_rows`; None where rows are fetched whole."""
    used: bool = False
    """Whether a step has computed it."""
    reused: bool = False
    """Whether more than one has."""


class MediaRows(NamedTuple):
    """Media embeddings that a step reads."""

    embeddings: FloatArray | None = None
    """[rows that are embeddings, row_width]."""
    images: FloatArray | None = None
    """[image rows, row_width], for cross-attention."""


def make_inputs(ctx: Context, shape: GraphShape, sizes: InputSizes) -> ModelInputs:
    """The inputs of a new graph."""
    n, m, images = shape.n_tokens, shape.n_embedded, shape.n_image_rows
    return ModelInputs(
        tokens=ctx.input("i32", (n,), name="tokens"),
        positions=ctx.input("i32", (n,) if sizes.axes == 1 else (n, sizes.axes), name="positions"),
        outputs=ctx.input("i32", (shape.n_outputs,), name="outputs") if 0 < shape.n_outputs < n else None,
        types=ctx.input("i32", (n,), name="types") if sizes.types else None,
        embeddings=ctx.input("f32", (sizes.row_width, m), name="embeddings") if m else None,
        embedding_rows=ctx.input("i32", (m,), name="embedding_rows") if m else None,
        images=ctx.input("f32", (sizes.row_width, images), name="images") if images else None,
    )


Failed = Callable[[BatchMedia, Exception], None]
"""Called for an item that cannot be computed; its rows are zeros then."""


def raise_error(part: BatchMedia, error: Exception) -> None:
    """A `Failed` for callers who compute one thing only."""
    raise error


def media_rows(media: tuple[BatchMedia, ...], sizes: InputSizes, failed: Failed) -> MediaRows:
    """The embeddings of a batch's media."""

    def joined(*, cross_attention: bool) -> FloatArray | None:
        parts = [part for part in media if part.item.cross_attention == cross_attention]
        return np.concatenate([_rows_or_zeros(part, sizes, failed) for part in parts]) if parts else None

    return MediaRows(joined(cross_attention=False), joined(cross_attention=True)) if media else MediaRows()


def _rows_or_zeros(part: BatchMedia, sizes: InputSizes, failed: Failed) -> FloatArray:
    try:
        return item_rows(part, sizes)
    except Exception as error:
        failed(part, error)
        n = _image_rows(part.item, sizes) if part.item.cross_attention else part.n
        return np.zeros((n, sizes.row_width), np.float32)


def image_rows(media: tuple[BatchMedia, ...], sizes: InputSizes) -> int:
    """Rows of the images for cross-attention among a batch's media."""
    return sum(_image_rows(part.item, sizes) for part in media if part.item.cross_attention)


def _image_rows(item: MediaItem, sizes: InputSizes) -> int:
    return sizes.image_rows if item.n_rows is None else item.n_rows


def item_rows(part: BatchMedia, sizes: InputSizes) -> FloatArray:
    """The rows of one item that a batch reads, float32 [rows, row_width]. Raises ComputeError for a wrong array."""
    item, rows = part.item, part.item.embeddings()
    n = _image_rows(item, sizes) if item.cross_attention else item.n_inputs
    if rows.shape != (n, sizes.row_width) or rows.dtype != np.float32:
        raise ComputeError(f"embeddings of an image are float32 {(n, sizes.row_width)}, got {rows.dtype} {rows.shape}")
    return rows if item.cross_attention else rows[part.offset : part.offset + part.n]


def write_inputs(inputs: ModelInputs, batch: Batch, tokens: Int32Array, media: MediaRows) -> None:
    """Write the values of one step."""
    inputs.tokens.set(tokens)
    inputs.positions.set(batch.positions if batch.axes is None else batch.axes)
    if inputs.outputs is not None:
        inputs.outputs.set(batch.outputs)
    if inputs.types is not None:
        inputs.types.set(np.zeros_like(batch.tokens) if batch.types is None else batch.types)
    if inputs.embeddings is not None and inputs.embedding_rows is not None:
        assert media.embeddings is not None, "a step with embedded rows has their embeddings"
        inputs.embeddings.set(media.embeddings)
        inputs.embedding_rows.set(batch.embedded_rows())
    if inputs.images is not None:
        assert media.images is not None, "a step with images has their embeddings"
        inputs.images.set(media.images)


def input_sizes(model: Model, traits: MediaTraits | None, n_types: int) -> InputSizes:
    """The sizes of a model that shape the inputs of its graphs. `traits`: None for a model that reads no media."""
    image_rows = max((layer.image_rows or 0 for layer in model.cache_layers), default=0)
    reads_media = traits is not None
    width = traits.row_width(model.n_embd) if traits is not None and isinstance(model, Embeds) else 0
    axes = 1 if traits is None else traits.position_axes
    return InputSizes(width, axes, image_rows if reads_media else 0, n_types > 0, reads_media and not image_rows)


def check_batch(batch: Batch, most: int, max_outputs: int, n_input_ids: int, n_types: int) -> None:
    """Raise ConfigError for a batch that no graph of these limits computes."""
    if not 1 <= len(batch) <= most:
        raise ConfigError(f"a batch has 1 to {most} tokens, got {len(batch)}")
    if len(batch.outputs) > max_outputs:
        raise ConfigError(f"a batch asks for at most {max_outputs} rows of logits, got {len(batch.outputs)}")
    check_range("tokens", batch.tokens, n_input_ids)
    check_range("positions", batch.positions, 1 << 31)
    check_range("sequences", batch.sequences, MAX_SEQUENCES)
    if len(batch.outputs):
        check_range("outputs", batch.outputs, len(batch))
    if batch.types is not None:
        check_range("types", batch.types, n_types)


def check_range(name: str, values: Int32Array, end: int) -> None:
    """Raise ConfigError for values out of [0, end)."""
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= end:
        raise ConfigError(f"{name} are 0 to {end - 1}, got {low} to {high}")
