"""GLM-4.5 and 4.6: `general.architecture` = glm4moe.

Half of each head rotates; the large models normalize queries and keys. All blocks but the first have experts, chosen by
sigmoids and a bias, and one that all tokens share. Source: GLM team 2025 (arXiv:2508.06471).
"""

from __future__ import annotations

from dataclasses import replace

from ollama_engine import nn
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import SelfAttention
from ollama_engine.models.decoder import Decoder, PreNormLayer, SparseLayer
from ollama_engine.models.experts import CorrectedMLP, read_mixture
from ollama_engine.models.options import Options, read_common


class MaybeNormedAttention(SelfAttention):
    """Each head of queries and keys is normalized, in files that have these weights."""

    q_norm = nn.RMSNorm("attn_q_norm", "head_dim", optional=True)
    k_norm = nn.RMSNorm("attn_k_norm", "head_dim", optional=True)

    def project(self, x: Tensor, o: Options) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x, o)
        if self.q_norm and self.k_norm:
            q, k = self.q_norm(q, o.norm_eps), self.k_norm(k, o.norm_eps)
        return q, k, v


class DenseLayer(PreNormLayer):
    attention = nn.Part(MaybeNormedAttention)
    ffn_norm = nn.RMSNorm("post_attention_norm", "n_embd")


class ExpertLayer(DenseLayer, SparseLayer):
    mlp = nn.Part(CorrectedMLP)


def make_layer(scope: nn.Scope) -> DenseLayer:
    """One block."""
    return (DenseLayer if scope.block < scope.options.n_dense else ExpertLayer)(scope)


class Glm4Moe(Decoder):
    architecture = "glm4moe"

    layers = nn.Blocks(make_layer, "n_layer")
    next_block = ExpertLayer

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        return replace(read_common(metadata, n_vocab), **read_mixture(metadata))
