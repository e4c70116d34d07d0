"""StarCoder2: `general.architecture` = starcoder2.

Norms that subtract the mean, biases everywhere, and a plain feed-forward block with GELU. Source: Lozhkov et al. 2024.

The config's sliding window applies in every layer, as in transformers; llama.cpp drops it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ollama_engine import nn
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.decoder import Decoder, PreNormLayer
from ollama_engine.models.options import LAYER_EPS, Options, read_common, read_windows


class Layer(PreNormLayer):
    """One block. Linear maps have biases where the file has them; all published models have all of them."""

    attn_norm = nn.LayerNorm("attn_norm", "n_embd", bias=True)
    ffn_norm = nn.LayerNorm("ffn_norm", "n_embd", bias=True)
    mlp = nn.Part(nn.PlainMLP)


class StarCoder2(Decoder):
    architecture = "starcoder2"

    layers: nn.Blocks[Any] = nn.Blocks(Layer, "n_layer")
    output_norm = nn.LayerNorm("output_norm", "n_embd", bias=True)

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        o = read_common(metadata, n_vocab, eps=LAYER_EPS)
        return replace(o, windows=read_windows(metadata, o.n_layer, period=0))
