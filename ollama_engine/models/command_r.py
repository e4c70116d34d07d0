"""Command R, Aya and Command R7B: `general.architecture` = command-r or cohere2.

Attention and feed-forward read the same norm, and both are added to the residual; norms subtract the mean and have no
bias; logits are scaled. Command R+ normalizes queries and keys. Command R7B has three local layers to each global one,
and only local ones have positions. Sources: Cohere's releases, and the reference implementation in transformers.
"""

from __future__ import annotations

from dataclasses import replace

from ollama_engine import nn
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep, SelfAttention
from ollama_engine.models.decoder import Decoder
from ollama_engine.models.options import LAYER_EPS, Options, read_common, read_windows


class NormedAttention(SelfAttention):
    """Each head of queries and keys has its own norm, in files that have these weights."""

    q_norm = nn.LayerNorm("attn_q_norm", "head_dim", "n_head", optional=True)
    k_norm = nn.LayerNorm("attn_k_norm", "head_dim", "n_head_kv", optional=True)

    def project(self, x: Tensor, o: Options) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x, o)
        if self.q_norm and self.k_norm:
            q, k = self.q_norm(q, o.norm_eps), self.k_norm(k, o.norm_eps)
        return q, k, v


class Layer(nn.Module):
    attn_norm = nn.LayerNorm("attn_norm", "n_embd")
    attention = nn.Part(NormedAttention)
    mlp = nn.Part(nn.GatedMLP)

    def forward(self, x: Tensor, step: LayerStep, o: Options) -> Tensor:
        """x [n_embd, n] -> [n_embd, n], or fewer rows in the last layer."""
        h = self.attn_norm(x, o.norm_eps)
        a = self.attention.forward(h, step, o)
        return step.output_rows(x) + step.output_rows(a) + self.mlp.forward(step.output_rows(h))


class CommandR(Decoder):
    architecture = "command-r"

    layers = nn.Blocks(Layer, "n_layer")
    output_norm = nn.LayerNorm("output_norm", "n_embd")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        o = read_common(metadata, n_vocab, rope_mode="norm", eps=LAYER_EPS)
        return replace(o, logit_scale=metadata.f32("logit_scale", 1.0))

    def logits(self, x: Tensor) -> Tensor:
        return ops.scale(super().logits(x), self.options.logit_scale)


class Cohere2(CommandR):
    architecture = "cohere2"

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        o = CommandR.read_options(metadata, n_vocab)
        windows = read_windows(metadata, o.n_layer, period=4)
        return replace(o, windows=windows, ropes=tuple(o.rope if window else None for window in windows))
