"""Qwen3, dense: `general.architecture` = qwen3 (with experts: qwen_moe.py).

Qwen2 without biases; each head of queries and keys is normalized before it is rotated. Source: Yang et al. 2025.
"""

from __future__ import annotations

from ollama_engine import nn
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import SelfAttention
from ollama_engine.models.decoder import Decoder, PreNormLayer
from ollama_engine.models.options import Options


class NormedAttention(SelfAttention):
    """Queries and keys are normalized head by head."""

    q_norm = nn.RMSNorm("attn_q_norm", "head_dim")
    k_norm = nn.RMSNorm("attn_k_norm", "head_dim")

    def project(self, x: Tensor, o: Options) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x, o)
        return self.q_norm(q, o.norm_eps), self.k_norm(k, o.norm_eps), v


class Layer(PreNormLayer):
    attention = nn.Part(NormedAttention)


class Qwen3(Decoder):
    architecture = "qwen3"

    layers = nn.Blocks(Layer, "n_layer")
