"""BERT and Nomic Embed Text: `general.architecture` = bert, nomic-bert.

Blocks with norms after attention and feed-forward. BERT (Devlin et al. 2018) adds a learnt vector for each position;
Nomic BERT (Nussbaum et al. 2024) rotates queries and keys instead, gates its feed-forward, and has no biases.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ollama_engine import nn
from ollama_engine.errors import ConfigError, Option
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep, SelfAttention
from ollama_engine.models.base import ModelInputs
from ollama_engine.models.bidirectional import BidirectionalOptions, BidirectionalTransformer, read_bidirectional
from ollama_engine.models.fused import FusedAttention


class BertAttention(SelfAttention):
    q = nn.Linear("attn_q", "n_embd", "q_size", bias=True)
    k = nn.Linear("attn_k", "n_embd", "kv_size", bias=True)
    v = nn.Linear("attn_v", "n_embd", "kv_size", bias=True)
    output = nn.Linear("attn_output", "q_size", "n_embd", bias=True)


class PostNormLayer(nn.Module):
    """One block: attention, then feed-forward, each beside a residual and before a norm."""

    attention: nn.Part[Any] = nn.Part(BertAttention)
    attention_norm = nn.LayerNorm("attn_output_norm", "n_embd", bias=True)
    mlp: nn.Part[Any] = nn.Part(nn.ErfMLP)
    output_norm = nn.LayerNorm("layer_output_norm", "n_embd", bias=True)

    def forward(self, x: Tensor, step: LayerStep, o: BidirectionalOptions) -> Tensor:
        """x [n_embd, n] -> [n_embd, n], or fewer rows in the last layer."""
        a = self.attention.forward(x, step, o)
        x = self.attention_norm(step.output_rows(a) + step.output_rows(x), o.norm_eps)
        return self.output_norm(self.mlp.forward(x) + x, o.norm_eps)


class NomicLayer(PostNormLayer):
    attention = nn.Part(FusedAttention)
    mlp = nn.Part(nn.GatedMLP)


class NomicBert(BidirectionalTransformer):
    """Nomic Embed Text 1 and 1.5."""

    architecture = "nomic-bert"

    token_embd_norm = nn.LayerNorm("token_embd_norm", "n_embd", bias=True)
    token_types = nn.Embedding("token_types", "n_embd", "n_token_types", optional=True)
    layers: nn.Blocks[Any] = nn.Blocks(NomicLayer, "n_layer")

    def embed(self, inputs: ModelInputs) -> Tensor:
        x = self.token_embd(inputs.tokens)
        return x if inputs.types is None or not self.token_types else x + self.token_types(inputs.types)


class Bert(NomicBert):
    """BERT and its descendants: MiniLM, BGE, E5, GTE, Arctic Embed 1, MS MARCO cross-encoders."""

    architecture = "bert"

    position_embd = nn.Embedding("position_embd", "n_embd", "context_length")
    layers = nn.Blocks(PostNormLayer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> BidirectionalOptions:
        """No layer rotates: positions are learnt vectors."""
        o = read_bidirectional(metadata, n_vocab)
        return replace(o, ropes=(None,) * o.n_layer)

    def fit_context(self, num_ctx: int) -> None:
        """Raise ConfigError where `num_ctx` exceeds the model's learnt positions."""
        if num_ctx > self.context_length:
            raise ConfigError(
                Option("num_ctx"),
                f" is {num_ctx}, but the model has {self.context_length} positions; lower it or leave it out",
            )

    def embed(self, inputs: ModelInputs) -> Tensor:
        return super().embed(inputs) + self.position_embd(inputs.positions)
