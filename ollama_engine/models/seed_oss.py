"""Seed-OSS: `general.architecture` = seed_oss.

Qwen2 with heads of a size of their own; the norm before the feed-forward block is named as one behind attention.
Source: ByteDance 2025.
"""

from __future__ import annotations

from ollama_engine import nn
from ollama_engine.models.decoder import Decoder, PreNormLayer
from ollama_engine.models.qwen2 import BiasedAttention


class Layer(PreNormLayer):
    attention = nn.Part(BiasedAttention)
    ffn_norm = nn.RMSNorm("post_attention_norm", "n_embd")


class SeedOss(Decoder):
    architecture = "seed_oss"

    layers = nn.Blocks(Layer, "n_layer")
