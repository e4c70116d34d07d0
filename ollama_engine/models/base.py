"""What the runner asks of a model, and what a model gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

from ollama_engine.input import Input, MediaItem, MediaTraits
from ollama_engine.kvcache import LayerShape, LayerView
from ollama_engine.ml.metadata import Metadata
from ollama_engine.ml.tensor import Tensor


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """Input tensors of one graph. Shapes are known while it is built, values only when it is computed."""

    tokens: Tensor
    """i32 [n]."""
    positions: Tensor
    """i32 [n]; [n, axes] for models with several position axes."""
    outputs: Tensor | None
    """i32 [n_outputs], the rows that are wanted of the result; None for all, in order."""
    types: Tensor | None = None
    """i32 [n], which of a pair of texts each token is of, 0 or 1; None for models whose tokens have no types."""
    embeddings: Tensor | None = None
    """f32 [n_embd, m]: rows of media, which stand in place of the embeddings of m tokens; None in batches of text."""
    embedding_rows: Tensor | None = None
    """i32 [m], which rows of the batch these are."""
    images: Tensor | None = None
    """f32 [n_embd, image_rows * images], what layers with cross-attention store of the images of this batch, in the
    order of `Batch.images`; None where none comes along."""


class Model(Protocol):
    """One architecture with one file's weights.

    `Model(metadata, weights)` reads options and binds weights; it raises ModelFormatError where they do not fit.
    """

    architecture: ClassVar[str]

    def __init__(self, metadata: Metadata, weights: Mapping[str, Tensor]) -> None: ...

    @property
    def n_vocab(self) -> int:
        """Length of a row of logits."""

    @property
    def n_input_ids(self) -> int:
        """Rows of the token embedding: ids that may be given, at least `n_vocab`. Those beyond are never sampled."""

    @property
    def context_length(self) -> int:
        """Tokens that the model was trained for."""

    @property
    def cache_layers(self) -> tuple[LayerShape, ...]:
        """Keys and values that each layer stores."""

    @property
    def unused_weights(self) -> tuple[str, ...]:
        """Tensors of the file that this model does not read."""

    def forward(self, inputs: ModelInputs, cache: LayerView) -> Tensor:
        """Build the graph: logits f32 [n_vocab, n_outputs]; a `TextEncoder` gives hidden states."""


@runtime_checkable
class Embeds(Protocol):
    """A model whose last hidden states can be had: what becomes logits, or the embedding of a text."""

    @property
    def n_embd(self) -> int:
        """Length of a hidden state."""

    def hidden(self, inputs: ModelInputs, cache: LayerView) -> Tensor:
        """Build the graph: hidden states f32 [n_embd, n_outputs]."""


@runtime_checkable
class TextEncoder(Embeds, Protocol):
    """A model that reads texts as a whole, each token all others, and writes none. Its `forward` is `hidden`."""

    head_pooling: ClassVar[Literal["cls", "mean"]]
    """What `scores` is given where the file does not say: the first token's hidden state, or the mean."""

    @property
    def n_token_types(self) -> int:
        """How many types tokens have; 0 where they have none."""

    @property
    def n_scores(self) -> int:
        """Scores that it gives a text, or a pair of texts; 0 without a classification head."""

    def scores(self, pooled: Tensor) -> Tensor:
        """Build the graph: pooled hidden states f32 [n_embd, n] -> f32 [n_scores, n]."""


@runtime_checkable
class ReadsMedia(Protocol):
    """A model whose prompts may hold images, or other media."""

    @property
    def media_traits(self) -> MediaTraits:
        """How it wants them batched."""

    def media_item(self, data: bytes) -> MediaItem:
        """What it makes of a file's bytes. Called from any thread; `MediaItem.embeddings` computes later.

        Raises MediaError for bytes that it cannot read.
        """

    def post_tokenize(self, inputs: list[Input]) -> list[Input]:
        """Rewrite a prompt: each item comes as one input with the token -1, and leaves as the inputs that it takes.

        The model puts tokens in their places, adds those that begin and end an image, and sets `same_batch` on the
        item's own first input, not on a token before it, which may be cached with another image behind it.
        """


@runtime_checkable
class FitsContext(Protocol):
    """A model that computes otherwise for long contexts."""

    def fit_context(self, num_ctx: int) -> None:
        """Requests will hold up to `num_ctx` tokens. Called once, before the first graph."""


@runtime_checkable
class ShiftsKeys(Protocol):
    """A model whose stored keys can be turned to other positions. Others have tokens computed again instead."""

    def shift_keys(self, layer: int, keys: Tensor, deltas: Tensor) -> Tensor:
        """Keys f32 [key_dim, kv_heads, n] of a layer as they are at positions changed by deltas i32 [n].

        Layers without positions return them as they are.
        """
