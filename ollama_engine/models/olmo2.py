"""OLMo 2 and OLMo 3: `general.architecture` = olmo2.

Norms come after attention and feed-forward, before the residual is added; queries and keys are normalized over all
heads together. OLMo 3 adds windows, with a full layer every fourth; YaRN stretches the full layers only. Source: OLMo
team 2024 and 2025.
"""

from __future__ import annotations

from dataclasses import replace

from ollama_engine import nn
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep, SelfAttention, heads
from ollama_engine.models.decoder import Decoder
from ollama_engine.models.options import Options, read_common, read_local_ropes, read_windows


class NormedAttention(SelfAttention):
    """Queries and keys are normalized before they are cut into heads."""

    q_norm = nn.RMSNorm("attn_q_norm", "q_size")
    k_norm = nn.RMSNorm("attn_k_norm", "kv_size")

    def project(self, x: Tensor, o: Options) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = nn.linears(x, self.q, self.k, self.v)
        q, k = self.q_norm(q, o.norm_eps), self.k_norm(k, o.norm_eps)
        return heads(q, o.head_dim), heads(k, o.head_dim), heads(v, o.head_dim)


class Layer(nn.Module):
    attention: nn.Part[SelfAttention] = nn.Part(NormedAttention)
    post_attention_norm = nn.RMSNorm("post_attention_norm", "n_embd")
    mlp = nn.Part(nn.GatedMLP)
    post_ffw_norm = nn.RMSNorm("post_ffw_norm", "n_embd")

    def forward(self, x: Tensor, step: LayerStep, o: Options) -> Tensor:
        """x [n_embd, n] -> [n_embd, n], or fewer rows in the last layer."""
        a = step.output_rows(self.attention.forward(x, step, o))
        x = self.post_attention_norm(a, o.norm_eps) + step.output_rows(x)
        return self.post_ffw_norm(self.mlp.forward(x), o.norm_eps) + x


class Olmo2(Decoder):
    architecture = "olmo2"

    layers = nn.Blocks(Layer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        o = read_common(metadata, n_vocab)
        windows = read_windows(metadata, o.n_layer, period=4)
        return replace(o, windows=windows, ropes=read_local_ropes(metadata, o.rope, windows, base=o.rope.base))
