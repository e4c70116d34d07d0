"""Hunyuan, dense and with experts: `general.architecture` = hunyuan-dense or hunyuan-moe.

Each head of queries and keys is normalized after it is rotated. With experts, every block has some, and one that all
tokens share. Source: Tencent 2025.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ollama_engine import nn
from ollama_engine.ml.gguf.gating import SOFTMAX
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep, SelfAttention
from ollama_engine.models.decoder import Decoder, PreNormLayer, SparseLayer
from ollama_engine.models.experts import SparseMLP, read_mixture
from ollama_engine.models.options import Options, read_common


class NormedLastAttention(SelfAttention):
    q_norm = nn.RMSNorm("attn_q_norm", "head_dim")
    k_norm = nn.RMSNorm("attn_k_norm", "head_dim")

    def forward(self, x: Tensor, step: LayerStep, o: Options) -> Tensor:
        q, k, v = self.project(x, o)
        step.cache.put(self.k_norm(step.rotate(k), o.norm_eps), v)
        q = self.q_norm(step.rotate(q), o.norm_eps)
        return self.output(nn.attention(q, step.cache, o.attention_scale))


class DenseLayer(PreNormLayer):
    attention = nn.Part(NormedLastAttention)


class ExpertLayer(SparseLayer):
    attention = nn.Part(NormedLastAttention)
    mlp = nn.Part(SparseMLP)


class HunyuanDense(Decoder):
    architecture = "hunyuan-dense"

    layers: nn.Blocks[PreNormLayer] = nn.Blocks(DenseLayer, "n_layer")

    shift_keys: Any = None
    """Keys cannot move to other positions: behind the rotation, a norm has weighed the halves of each pair apart."""


class HunyuanMoe(HunyuanDense):
    architecture = "hunyuan-moe"

    layers: nn.Blocks[PreNormLayer] = nn.Blocks(ExpertLayer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        return replace(read_common(metadata, n_vocab), **read_mixture(metadata, gating=SOFTMAX))
