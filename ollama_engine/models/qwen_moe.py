"""Qwen2 and Qwen3 with experts: `general.architecture` = qwen2moe or qwen3moe.

Every feed-forward block is a mixture. Qwen2 adds an expert that all tokens share, behind a gate of its own, and does
not normalize the weights of the chosen experts. Qwen3 shares none, and normalizes. Sources: Yang et al. 2024 and 2025.
"""

from __future__ import annotations

from dataclasses import replace

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.decoder import Decoder, SparseLayer
from ollama_engine.models.experts import SparseMLP
from ollama_engine.models.options import Options, read_common, read_experts
from ollama_engine.models.qwen2 import BiasedAttention
from ollama_engine.models.qwen3 import NormedAttention


class GatedExpert(nn.Module):
    """The expert that all tokens share, times a sigmoid of each token."""

    share = nn.Linear("ffn_gate_inp_shexp", "n_embd")
    gate = nn.Linear("ffn_gate_shexp", "n_embd", "n_ff_shexp")
    up = nn.Linear("ffn_up_shexp", "n_embd", "n_ff_shexp")
    down = nn.Linear("ffn_down_shexp", "n_ff_shexp", "n_embd")

    def forward(self, x: Tensor) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        share = ops.unary(self.share(x), "sigmoid")
        gate, up = nn.linears(x, self.gate, self.up)
        y = self.down(ops.glu(gate, up))
        return nn.scaled_rows(y, ops.reshape(share, 1, 1, y.dim(1)))


class GatedSharedMLP(SparseMLP):
    """The chosen experts, and the one that all tokens share."""

    shared = nn.Part(GatedExpert)


class Qwen3Layer(SparseLayer):
    attention = nn.Part(NormedAttention)
    mlp = nn.Part(SparseMLP)


class Qwen2Layer(SparseLayer):
    attention = nn.Part(BiasedAttention)
    mlp = nn.Part(GatedSharedMLP)


class Qwen3Moe(Decoder):
    architecture = "qwen3moe"

    layers = nn.Blocks(Qwen3Layer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        o = replace(read_common(metadata, n_vocab), **read_experts(metadata))
        return replace(o, normalize_experts=metadata.bool("norm_top_k_prob", True))


class Qwen2Moe(Decoder):
    architecture = "qwen2moe"

    layers = nn.Blocks(Qwen2Layer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        o = replace(read_common(metadata, n_vocab), **read_experts(metadata))
        shared = metadata.u32("expert_shared_feed_forward_length", o.n_ff)
        if shared < 1:
            raise ModelFormatError("expert_shared_feed_forward_length must not be 0")
        return replace(o, n_ff_shexp=shared, normalize_experts=metadata.bool("norm_top_k_prob", False))
