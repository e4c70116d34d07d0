"""What encoders share: texts that are read as a whole become hidden states, and these embeddings or scores.

A model's file says what its blocks are. `attention.causal` is false in their files; nothing of a text is cached.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.kvcache import LayerShape, LayerView
from ollama_engine.ml import ops
from ollama_engine.ml.metadata import Metadata
from ollama_engine.ml.tensor import Tensor
from ollama_engine.models.base import ModelInputs
from ollama_engine.models.decoder import Step
from ollama_engine.models.options import LAYER_EPS, DecoderOptions, read_decoder

MAX_SCORES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class EncoderOptions(DecoderOptions):
    """Sizes and constants from the metadata. A window W shows a token those up to W // 2 away on either side."""

    n_token_types: int
    """Which of two texts a token is of (BERT's segments); 0 where tokens have no types."""
    n_scores: int
    """Of the classification head, where the file has one."""


def read_encoder(metadata: Metadata, n_vocab: int, *, rope_mode: str = "neox") -> dict[str, Any]:
    """The fields of EncoderOptions that all read alike. Raises ModelFormatError."""
    fields = read_decoder(metadata, n_vocab, rope_mode=rope_mode, eps=LAYER_EPS)
    labels = metadata.list("classifier.output_labels", [])
    n_types = metadata.u32("tokenizer.ggml.token_type_count", 0)
    if max(len(labels), n_types) > MAX_SCORES:
        raise ModelFormatError(f"{len(labels)} labels and {n_types} token types are more than a model can have")
    return {**fields, "n_token_types": n_types, "n_scores": len(labels) or 1}


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


class Encoder(nn.Module):
    """A whole model. A subclass names its architecture and blocks, and reads its options."""

    architecture: ClassVar[str]
    head_activation: ClassVar[str] = "tanh"
    head_pooling: ClassVar[Literal["cls", "mean"]] = "cls"

    token_embd = nn.Embedding("token_embd", "n_embd", "n_vocab")
    token_embd_norm = nn.LayerNorm("token_embd_norm", "n_embd")
    layers: nn.Blocks[Any] = nn.Blocks(nn.Module, "n_layer")
    head = nn.Part(Head)

    def __init__(self, metadata: Metadata, weights: Mapping[str, Tensor]) -> None:
        if "token_embd.weight" not in weights:
            raise ModelFormatError("the file has no tensor token_embd.weight; is it a vocabulary-only file?")
        self.options = self.read_options(metadata, weights["token_embd.weight"].dim(1))
        scope = nn.Scope(weights, self.options)
        super().__init__(scope)
        self.unused_weights = tuple(sorted(set(weights) - scope.used))

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> EncoderOptions:
        """Options of a file; `n_vocab` counts the rows of its token embedding. Raises ModelFormatError."""
        return EncoderOptions(**read_encoder(metadata, n_vocab))

    @property
    def n_vocab(self) -> int:
        """Rows of the token embedding."""
        return self.options.n_vocab

    @property
    def n_embd(self) -> int:
        """Length of a hidden state."""
        return self.options.n_embd

    @property
    def n_token_types(self) -> int:
        """How many types tokens have; 0 where they have none."""
        return self.options.n_token_types

    @property
    def n_scores(self) -> int:
        """Scores of the classification head; 0 without one."""
        return self.options.n_scores if self.head.output else 0

    @property
    def context_length(self) -> int:
        """Tokens that the model was trained for."""
        return self.options.context_length

    @property
    def cache_layers(self) -> tuple[LayerShape, ...]:
        """Each layer with its window. Nothing is stored."""
        o = self.options
        return tuple(
            LayerShape(kv_heads=o.n_head_kv, key_dim=o.head_dim, value_dim=o.head_dim, window=window)
            for window in o.windows
        )

    def embed(self, inputs: ModelInputs) -> Tensor:
        """What the blocks start from, before the norm: f32 [n_embd, n]."""
        return self.token_embd(inputs.tokens)

    def finish(self, x: Tensor) -> Tensor:
        """The last block's output [n_embd, n] -> hidden states [n_embd, n]."""
        return x

    def hidden(self, inputs: ModelInputs, cache: LayerView) -> Tensor:
        """Build the graph: hidden states f32 [n_embd, n_outputs]."""
        o = self.options
        x = self.token_embd_norm(self.embed(inputs), o.norm_eps)
        for i, layer in enumerate(self.layers):
            cache.set_layer(i)
            outputs = inputs.outputs if i == o.n_layer - 1 else None
            x = layer.forward(x, Step(inputs.positions, o.ropes[i], None, cache, outputs), o)
        return self.finish(x)

    forward = hidden

    def scores(self, pooled: Tensor) -> Tensor:
        """Build the graph: pooled hidden states f32 [n_embd, n] -> f32 [n_scores, n]."""
        return self.head.forward(pooled, self.head_activation, self.options.norm_eps)
