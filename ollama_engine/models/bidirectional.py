"""Base of text encoders: hidden states of a whole text, for an embedding or for scores.

A model's file defines the blocks. `attention.causal` is false in their GGUF files, and nothing is cached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ollama_engine import nn
from ollama_engine.errors import ConfigError, ModelFormatError, Option
from ollama_engine.kvcache import LayerView
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.base import ModelInputs
from ollama_engine.models.options import LAYER_EPS, Options, read_common
from ollama_engine.models.transformer import Transformer

MAX_SCORES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class BidirectionalOptions(Options):
    """Sizes and constants from the metadata. With a window W, a token sees up to W // 2 tokens on either side."""

    n_token_types: int
    """Number of token types (BERT's segments), which distinguish the two texts of a pair; 0 without types."""
    n_scores: int
    """Outputs of the classification head, where the file has one."""


def read_bidirectional(metadata: Metadata, n_vocab: int) -> BidirectionalOptions:
    """Options of every text encoder; see `read_common`. Raises ModelFormatError."""
    common = read_common(metadata, n_vocab, eps=LAYER_EPS)
    labels = metadata.list("classifier.output_labels", [])
    n_types = metadata.u32("tokenizer.ggml.token_type_count", 0)
    if max(len(labels), n_types) > MAX_SCORES:
        raise ModelFormatError(f"{len(labels)} labels and {n_types} token types are more than a model can have")
    return BidirectionalOptions(**vars(common), n_token_types=n_types, n_scores=len(labels) or 1)


class Head(nn.Module):
    """Pooled hidden states to scores: activation(cls x), a norm in some, then cls.output."""

    dense = nn.Linear("cls", "n_embd", "n_embd", optional=True)
    norm = nn.LayerNorm("cls.norm", "n_embd", optional=True)
    output = nn.Linear("cls.output", "n_embd", "n_scores", optional=True)

    def forward(self, x: Tensor, activation: str, eps: float) -> Tensor:
        """x [n_embd, n] -> [n_scores, n]."""
        if self.dense:
            x = ops.unary(self.dense(x), activation)
        if self.norm:
            x = self.norm(x, eps)
        return self.output(x)


class LearntPositions(Transformer):
    """A model with a learnt vector for each position."""

    position_embd = nn.Embedding("position_embd", "n_embd", "context_length")

    def fit_context(self, num_ctx: int) -> None:
        """Raise ConfigError where `num_ctx` exceeds the positions."""
        if num_ctx > self.context_length:
            raise ConfigError(
                Option("num_ctx"),
                f" is {num_ctx}, but the model has {self.context_length} positions; lower it or leave it out",
            )


class BidirectionalTransformer(Transformer):
    """A text encoder: each token attends to all others, or to those in a window around it."""

    head_activation: ClassVar[str] = "tanh"
    head_pooling: ClassVar[Literal["cls", "mean", "last"]] = "cls"
    options: BidirectionalOptions

    token_embd_norm = nn.LayerNorm("token_embd_norm", "n_embd")
    head = nn.Part(Head)

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> BidirectionalOptions:
        return read_bidirectional(metadata, n_vocab)

    @property
    def n_token_types(self) -> int:
        """Number of token types; 0 for a model without them."""
        return self.options.n_token_types

    @property
    def n_scores(self) -> int:
        """Scores of the classification head; 0 without one."""
        return self.options.n_scores if self.head.output else 0

    def embed(self, inputs: ModelInputs) -> Tensor:
        """Input of the first block, before the norm: f32 [n_embd, n]."""
        return self.token_embd(inputs.tokens)

    def finish(self, x: Tensor) -> Tensor:
        """The last block's output [n_embd, n] -> hidden states [n_embd, n]."""
        return x

    def hidden(self, inputs: ModelInputs, cache: LayerView) -> Tensor:
        """Build the graph: hidden states f32 [n_embd, n_outputs]."""
        x = self.token_embd_norm(self.embed(inputs), self.options.norm_eps)
        return self.finish(self.through_layers(x, inputs, cache))

    forward = hidden

    def scores(self, pooled: Tensor) -> Tensor:
        """Build the graph: pooled hidden states f32 [n_embd, n] -> f32 [n_scores, n]."""
        return self.head.forward(pooled, self.head_activation, self.options.norm_eps)
