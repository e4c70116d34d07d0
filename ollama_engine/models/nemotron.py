"""Nemotron 3 and 4, and Minitron, dense: `general.architecture` = nemotron.

Norms that subtract the mean, whose weights are published as differences from 1 (conversion adds it); half of each head
rotates; no gate, and the square of ReLU. Source: Parmar et al. 2024.
"""

from __future__ import annotations

from ollama_engine import nn
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.decoder import Decoder, PreNormLayer
from ollama_engine.models.options import LAYER_EPS, Options, read_common


class Layer(PreNormLayer):
    attn_norm = nn.LayerNorm("attn_norm", "n_embd", bias=True)
    ffn_norm = nn.LayerNorm("ffn_norm", "n_embd", bias=True)
    mlp = nn.Part(nn.SquaredMLP)


class Nemotron(Decoder):
    architecture = "nemotron"

    layers = nn.Blocks(Layer, "n_layer")
    output_norm = nn.LayerNorm("output_norm", "n_embd", bias=True)

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        return read_common(metadata, n_vocab, eps=LAYER_EPS)
