"""Arcee Foundation Models: `general.architecture` = arcee.

A Llama whose feed-forward block has no gate, and the square of ReLU. Source: Arcee AI 2025.
"""

from __future__ import annotations

from ollama_engine import nn
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.decoder import Decoder, PreNormLayer
from ollama_engine.models.options import Options, read_common


class Layer(PreNormLayer):
    mlp = nn.Part(nn.SquaredMLP)


class Arcee(Decoder):
    architecture = "arcee"

    layers = nn.Blocks(Layer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        return read_common(metadata, n_vocab, rope_mode="norm")
