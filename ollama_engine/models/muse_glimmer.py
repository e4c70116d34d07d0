"""Muse Glimmer: `general.architecture` = muse-glimmer. Text only.

Embeddings are normalized; norms stand before and behind attention and feed-forward, those behind with an epsilon of
their own; a sigmoid of each token's input gates what attention gives; local layers have positions, global ones none.
Logits are scaled and capped. Source: Meta 2026, and the reference implementation in transformers.
"""

from __future__ import annotations

from dataclasses import replace

from ollama_engine import nn
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep
from ollama_engine.models.decoder import Decoder
from ollama_engine.models.gemma2 import read_cap
from ollama_engine.models.options import Options, read_common, read_local_ropes, read_windows
from ollama_engine.models.qwen3 import NormedAttention

POST_EPS = 1e-8
"""Epsilon of the norms behind attention and feed-forward: no file has a key for it."""


class GatedAttention(NormedAttention):
    gate = nn.Linear("attn_gate", "n_embd", "q_size")

    def forward(self, x: Tensor, step: LayerStep, o: Options) -> Tensor:
        q, k, v = self.project(x, o)
        step.cache.put(step.rotate(k), v)
        y = nn.attention(step.rotate(q), step.cache, o.attention_scale)
        return self.output(y * ops.unary(self.gate(x), "sigmoid"))


class Layer(nn.Module):
    attn_norm = nn.RMSNorm("attn_norm", "n_embd")
    attention = nn.Part(GatedAttention)
    post_attention_norm = nn.RMSNorm("post_attention_norm", "n_embd")
    ffn_norm = nn.RMSNorm("ffn_norm", "n_embd")
    mlp = nn.Part(nn.GatedMLP)
    post_ffw_norm = nn.RMSNorm("post_ffw_norm", "n_embd")

    def forward(self, x: Tensor, step: LayerStep, o: Options) -> Tensor:
        """x [n_embd, n] -> [n_embd, n], or fewer rows in the last layer."""
        a = step.output_rows(self.attention.forward(self.attn_norm(x, o.norm_eps), step, o))
        x = self.post_attention_norm(a, POST_EPS) + step.output_rows(x)
        return self.post_ffw_norm(self.mlp.forward(self.ffn_norm(x, o.norm_eps)), POST_EPS) + x


class MuseGlimmer(Decoder):
    architecture = "muse-glimmer"

    layers = nn.Blocks(Layer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        o = read_common(metadata, n_vocab, rope_mode="norm")
        windows = read_windows(metadata, o.n_layer, period=4)
        ropes = read_local_ropes(metadata, o.rope, windows, base=o.rope.base)
        return replace(
            o, windows=windows, ropes=tuple(r if window else None for r, window in zip(ropes, windows, strict=True)),
            logit_softcap=read_cap(metadata, "final_logit_softcapping"), logit_scale=metadata.f32("logit_scale"),
        )  # fmt: skip

    def embed(self, tokens: Tensor) -> Tensor:
        return ops.rms_norm(super().embed(tokens), self.options.norm_eps)

    def logits(self, x: Tensor) -> Tensor:
        y = ops.scale(super().logits(x), self.options.logit_scale)
        return nn.soft_cap(y, self.options.logit_softcap) if self.options.logit_softcap else y
