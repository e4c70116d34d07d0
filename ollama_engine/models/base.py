"""Contracts between models and the runner: ModelInputs, Model, and what some models can do beside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, runtime_checkable

from ollama_engine.input import Input, MediaTraits, PreparedImage
from ollama_engine.kvcache import LayerShape, LayerView
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

    from ollama_engine.ml.graph.context import Context


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """Input tensors of one graph. Shapes are known while it is built, values only when it is computed."""

    tokens: Tensor
    """Token ids, i32 [n]."""
    positions: Tensor
    """Positions, i32 [n]; [n, axes] for models with several position axes."""
    outputs: Tensor | None
    """i32 [n_outputs], the rows to return; None for all, in order."""
    types: Tensor | None = None
    """i32 [n], the type of each token: 0 or 1, its text in a pair of texts; or its adapter, 0 for none. None for models
    without token types.
    """
    embeddings: Tensor | None = None
    """f32 [`MediaTraits.row_width`, m]: embeddings of media, which replace those of m tokens, and behind each what
    joins it later (`models.media_rows`). None in batches without media."""
    embedding_rows: Tensor | None = None
    """i32 [m], the rows of the batch that `embeddings` replace."""
    images: Tensor | None = None
    """f32 [n_embd, rows], input of the cross-attention layers: all rows of this batch's images, in the order of
    `Batch.images`. None in batches without images."""
    aux_states: dict[int, Tensor] | None = None
    """{n: what the first n blocks give, f32 [n_embd, n_tokens]}: the model fills it while the graph is built, for
    `models.aux_states`. None: no head reads it."""

    def keep_aux(self, n_blocks: int, x: Tensor) -> None:
        """Keep what the first `n_blocks` blocks give, if a head reads it."""
        if self.aux_states is not None:
            self.aux_states[n_blocks] = x


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
        """Rows of the token embedding, at least `n_vocab`. Ids from `n_vocab` on are valid inputs but never sampled."""

    @property
    def context_length(self) -> int:
        """Longest text that the model was trained for, in tokens."""

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
    """A model that can return its last hidden states, from which logits or embeddings are made."""

    @property
    def n_embd(self) -> int:
        """Length of a hidden state."""

    def hidden(self, inputs: ModelInputs, cache: LayerView) -> Tensor:
        """Build the graph: hidden states f32 [n_embd, n_outputs]."""


@runtime_checkable
class MakesLogits(Embeds, Protocol):
    """A model whose logits are made of its last hidden states, which may be asked for beside them."""

    def logits(self, x: Tensor) -> Tensor:
        """Build the graph: hidden states f32 [n_embd, n] -> logits f32 [n_vocab, n]."""


@runtime_checkable
class TextEncoder(Embeds, Protocol):
    """A bidirectional model: each token attends to all others, and nothing is generated. `forward` is `hidden`."""

    @property
    def n_token_types(self) -> int:
        """Number of token types, or of adapters and one; 0 for a model without them."""


@runtime_checkable
class Ranks(Embeds, Protocol):
    """A model that may have a classification head, which scores texts or pairs of texts."""

    head_pooling: ClassVar[Literal["cls", "mean", "last"]]
    """Pooling for `scores` where the file does not say: the first token's hidden state, the mean, or the last's."""

    @property
    def n_scores(self) -> int:
        """Number of scores for a text or a pair of texts; 0 without a classification head."""

    def scores(self, pooled: Tensor) -> Tensor:
        """Build the graph: pooled hidden states f32 [n_embd, n] -> f32 [n_scores, n]."""


@runtime_checkable
class ProjectsVectors(Embeds, Protocol):
    """A model with layers behind the pooling, from hidden states to the vectors of texts."""

    @property
    def n_vector(self) -> int:
        """Length of a text's vector."""

    def project(self, pooled: Tensor) -> Tensor:
        """Build the graph: pooled hidden states f32 [n_embd, n] -> vectors f32 [n_vector, n]."""


@runtime_checkable
class ReadsMedia(Protocol):
    """A model whose prompts may hold images. `multimodal` is None where its file has no part that reads them."""

    multimodal: Multimodal | None


class ImageTower(Protocol):
    """A tower that encodes images, apart from any text."""

    def preprocess(self, image: Image) -> PreparedImage:
        """Resize, cut and normalize a picture, RGB or RGBA, as the model's published processor does.

        Computes with Pillow and numpy only; any thread may call it. Raises ImageError for a picture that the model
        cannot take.
        """

    def encode_multimodal(self, ctx: Context, image: PreparedImage) -> Tensor:
        """Build the vision graph of one image in a context of its own: embeddings f32 [n_embd, rows], or as wide as
        `MediaTraits.row_width` says.

        `ctx.from_floats` and `ctx.from_ints` make its inputs.
        """

    def largest_image(self) -> PreparedImage:
        """An image, all zeros, whose vision graph takes the most memory."""


@runtime_checkable
class VariesGraphs(Protocol):
    """An image tower whose graphs are not alike, so that a smaller image may take more memory than the largest."""

    def smaller_images(self) -> Iterator[PreparedImage]:
        """For each graph that smaller images have, the image of all zeros that takes the most memory."""


@runtime_checkable
class EmbedsImages(Protocol):
    """A model that gives one vector of each image, and reads no text: half of a CLIP.

    It implements `Model` with a vocabulary of 0 tokens, and its `forward` is never called.
    """

    image_tower: ImageTower
    """Its embeddings have one row."""

    @property
    def n_image_embd(self) -> int:
        """Length of an image's vector."""


class Multimodal(ImageTower, Protocol):
    """The part of a model that reads images. The runner asks it, and knows no architecture."""

    placeholder: str
    """The text that the family's chat template writes where an image goes, such as "<start_of_image>"."""

    @property
    def traits(self) -> MediaTraits:
        """How images must be batched for this model."""

    def post_tokenize(self, inputs: list[Input]) -> list[Input]:
        """Rewrite a prompt: replace each media item, one input with token -1, by all the inputs that it takes.

        The model fills in token ids, adds the tokens that begin and end an image, and sets `same_batch` on the first
        input of the item itself, where its inputs must share a batch. Not on a token before it: that may be cached with
        another image behind it.
        """


@runtime_checkable
class FitsContext(Protocol):
    """A model that computes differently for long contexts."""

    def fit_context(self, num_ctx: int) -> None:
        """Prepare for requests of up to `num_ctx` tokens. Called once, before the first graph."""


@runtime_checkable
class ShiftsKeys(Protocol):
    """A model whose stored keys can be rotated to other positions. Others compute the tokens again."""

    def shift_keys(self, layer: int, keys: Tensor, deltas: Tensor) -> Tensor:
        """Keys f32 [key_dim, kv_heads, n] of a layer, moved to their positions plus `deltas` i32 [n].

        A layer without positions returns the keys unchanged.
        """
