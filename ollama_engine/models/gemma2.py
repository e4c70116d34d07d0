"""Gemma 2: `general.architecture` = gemma2.

Attention and feed-forward each have a norm before and after; embeddings are scaled by sqrt(n_embd); the gate is a GELU.
Every other layer attends to a window. Attention scores and logits have soft caps. Source: Gemma team 2024.

Norms are stored as 1 + w in GGUF, as w by transformers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.ops.operands import SOFTCAPS
from ollama_engine.models.attention import LayerStep, SelfAttention
from ollama_engine.models.decoder import Decoder
from ollama_engine.models.options import Options, read_common, read_windows

WIDEST = 46
"""Layers of the 27B model, whose scores are scaled by n_embd / n_head; llama.cpp writes no key for that scale."""


class Layer(nn.Module):
    attn_norm = nn.RMSNorm("attn_norm", "n_embd")
    attention: nn.Part[SelfAttention] = nn.Part(SelfAttention)
    post_attention_norm = nn.RMSNorm("post_attention_norm", "n_embd")
    ffn_norm = nn.RMSNorm("ffn_norm", "n_embd")
    mlp: nn.Part[Any] = nn.Part(nn.GeluMLP)
    post_ffw_norm = nn.RMSNorm("post_ffw_norm", "n_embd")

    def forward(self, x: Tensor, step: LayerStep, o: Options) -> Tensor:
        """x [n_embd, n] -> [n_embd, n], or fewer rows in the last layer."""
        a = step.output_rows(self.attention.forward(self.attn_norm(x, o.norm_eps), step, o))
        x = self.post_attention_norm(a, o.norm_eps) + step.output_rows(x)
        return self.post_ffw_norm(self.feed_forward(x, o), o.norm_eps) + x

    def feed_forward(self, x: Tensor, o: Options) -> Tensor:
        """x [n_embd, n] -> [n_embd, n], without the norm behind it and residual."""
        out: Tensor = self.mlp.forward(self.ffn_norm(x, o.norm_eps))
        return out


def read_scale(metadata: Metadata, o: Options, widest: int) -> float:
    """Factor of the attention scores; the model with `widest` layers has another one."""
    usual = o.n_embd / o.n_head if o.n_layer == widest else o.head_dim
    return metadata.f32("attention.scale", 0.0) or 1 / math.sqrt(usual)


def read_cap(metadata: Metadata, name: str, default: float = 0.0) -> float:
    """A soft cap; 0 for none."""
    cap = metadata.f32(name, default)
    least, most = SOFTCAPS
    if cap and not least <= cap <= most:
        raise ModelFormatError(f"{name} is 0 for none, or {least:g} to {most:g}, got {cap:g}")
    return cap


class Gemma(Decoder):
    """A decoder whose embeddings are scaled."""

    def embed(self, tokens: Tensor) -> Tensor:
        return ops.scale(super().embed(tokens), math.sqrt(self.options.n_embd))


class Gemma2(Gemma):
    architecture = "gemma2"

    layers: nn.Blocks[Any] = nn.Blocks(Layer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        o = read_common(metadata, n_vocab, head_dim=256)
        return replace(
            o,
            windows=read_windows(metadata, o.n_layer, period=2, default=4096),
            attention_scale=read_scale(metadata, o, WIDEST),
            attention_softcap=read_cap(metadata, "attn_logit_softcapping"),
            logit_softcap=read_cap(metadata, "final_logit_softcapping"),
        )

    def logits(self, x: Tensor) -> Tensor:
        cap = self.options.logit_softcap
        return nn.soft_cap(super().logits(x), cap) if cap else super().logits(x)
