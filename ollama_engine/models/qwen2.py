"""Qwen2 and Qwen2.5, with the models distilled into them: `general.architecture` = qwen2.

A Llama with biases on queries, keys and values, and rotations of halves instead of pairs. Source: Yang et al. 2024.

transformers supports a sliding window in the upper layers. No published model switches it on, and GGUF has no key for
it, so conversion refuses such a config.
"""

from __future__ import annotations

from ollama_engine import nn
from ollama_engine.models.attention import SelfAttention
from ollama_engine.models.decoder import Decoder, PreNormLayer


class BiasedAttention(SelfAttention):
    """Queries, keys and values have biases; the output has none."""

    q = nn.Linear("attn_q", "n_embd", "q_size", bias=True)
    k = nn.Linear("attn_k", "n_embd", "kv_size", bias=True)
    v = nn.Linear("attn_v", "n_embd", "kv_size", bias=True)


class Layer(PreNormLayer):
    attention = nn.Part(BiasedAttention)


class Qwen2(Decoder):
    architecture = "qwen2"

    layers = nn.Blocks(Layer, "n_layer")
