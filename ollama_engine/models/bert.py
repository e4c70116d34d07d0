"""BERT and its relatives: `general.architecture` = bert (XLM-R too), gte, nomic-bert, nomic-bert-moe, jina-bert-v3.

Blocks with norms after attention and feed-forward. BERT (Devlin et al. 2018) adds a learnt vector for each position;
Nomic BERT (Nussbaum et al. 2024) rotates queries and keys instead, gates its feed-forward, and has no biases. Jina 3
(Sturua et al. 2024) rotates and has neither gate nor learnt positions; in Nomic Embed 2 (Nussbaum and Duderstadt 2025)
every other feed-forward block of such a model is a mixture of experts. GTE 1.5 and multilingual (Zhang et al. 2024), of
which Arctic Embed 2 M is made, rotate, and gate by the exact form of GELU; llama.cpp has no name for them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ollama_engine import nn
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep, SelfAttention
from ollama_engine.models.base import ModelInputs
from ollama_engine.models.bidirectional import (
    BidirectionalOptions,
    BidirectionalTransformer,
    LearntPositions,
    read_bidirectional,
)
from ollama_engine.models.fused import FusedAttention
from ollama_engine.models.options import read_experts


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


class BiasedFusedAttention(FusedAttention):
    qkv = nn.Linear("attn_qkv", "n_embd", "qkv_size", bias=True)
    output = nn.Linear("attn_output", "q_size", "n_embd", bias=True)


class JinaLayer(PostNormLayer):
    attention = nn.Part(BiasedFusedAttention)


class GeGLU(nn.GatedMLP):
    """down(gelu(gate x) * up x) with the exact form of GELU, and a bias at its end."""

    down = nn.Linear("ffn_down", "n_ff", "n_embd", bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        return self.down(nn.gelu_erf(self.gate(x), self.gate.tensor) * self.up(x))


class GteLayer(JinaLayer):
    mlp = nn.Part(GeGLU)


@dataclass(frozen=True, kw_only=True)
class NomicMoeOptions(BidirectionalOptions):
    moe_period: int
    """The second of so many layers has experts."""


class ErfExperts(nn.Module):
    """The sum of some experts' down(gelu(up x)), by the router's probabilities as they are, and one bias for all.

    llama.cpp leaves the bias out.
    """

    router = nn.Linear("ffn_gate_inp", "n_embd", "n_expert")
    up = nn.ExpertLinear("ffn_up_exps", "n_embd", "n_ff", "n_expert")
    down = nn.ExpertLinear("ffn_down_exps", "n_ff", "n_embd", "n_expert")

    def __init__(self, scope: nn.Scope) -> None:
        super().__init__(scope)
        self.bias = scope.find("ffn_down_exps.bias", ("n_embd",))
        self.n_used: int = scope.options.n_expert_used

    def forward(self, x: Tensor) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        ids, weights = nn.route(self.router(x), self.n_used, normalize=False)
        hidden = nn.gelu_erf(self.up(ops.reshape(x, x.dim(0), 1, x.dim(1)), ids), self.up.tensor)
        y = nn.sum_experts(self.down(hidden, ids), weights)
        return y if self.bias is None else y + self.bias


def make_nomic_mlp(scope: nn.Scope) -> nn.ErfMLP | ErfExperts:
    """The feed-forward part of a block."""
    period = scope.options.moe_period
    return ErfExperts(scope) if period and scope.block % period == 1 else nn.ErfMLP(scope)


class NomicMoeLayer(JinaLayer):
    mlp = nn.Part(make_nomic_mlp)


class NomicBert(BidirectionalTransformer):
    """Nomic Embed Text 1 and 1.5."""

    architecture = "nomic-bert"

    token_embd_norm = nn.LayerNorm("token_embd_norm", "n_embd", bias=True)
    token_types = nn.Embedding("token_types", "n_embd", "n_token_types", optional=True)
    layers: nn.Blocks[Any] = nn.Blocks(NomicLayer, "n_layer")

    def embed(self, inputs: ModelInputs) -> Tensor:
        x = self.token_embd(inputs.tokens)
        return x if inputs.types is None or not self.token_types else x + self.token_types(inputs.types)


class Gte(NomicBert):
    """GTE 1.5 and multilingual, Arctic Embed 2 M."""

    architecture = "gte"

    layers = nn.Blocks(GteLayer, "n_layer")


class NomicBertMoe(NomicBert):
    """Nomic Embed Text 2."""

    architecture = "nomic-bert-moe"

    layers = nn.Blocks(NomicMoeLayer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> NomicMoeOptions:
        o = read_bidirectional(metadata, n_vocab)
        period = metadata.u32("moe_every_n_layers", 0)
        experts = read_experts(metadata, o.n_ff) if period else {}
        return NomicMoeOptions(**vars(replace(o, **experts)), moe_period=period)


class Bert(LearntPositions, NomicBert):
    """BERT and its descendants: MiniLM, BGE, E5, GTE, Arctic Embed 1, MS MARCO cross-encoders."""

    architecture = "bert"

    layers = nn.Blocks(PostNormLayer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> BidirectionalOptions:
        """No layer rotates: positions are learnt vectors."""
        o = read_bidirectional(metadata, n_vocab)
        return replace(o, ropes=(None,) * o.n_layer)

    def embed(self, inputs: ModelInputs) -> Tensor:
        return super().embed(inputs) + self.position_embd(inputs.positions)
