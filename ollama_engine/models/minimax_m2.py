"""MiniMax M2: `general.architecture` = minimax-m2.

Queries and keys are normalized over all heads together, as in OLMo 2, and rotate in part; every block has experts,
chosen by sigmoids and a bias. Source: MiniMax 2025.
"""

from __future__ import annotations

from dataclasses import replace

from ollama_engine import nn
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.decoder import Decoder, SparseLayer
from ollama_engine.models.experts import CorrectedMLP, read_mixture
from ollama_engine.models.olmo2 import NormedAttention
from ollama_engine.models.options import Options, read_common


class Layer(SparseLayer):
    attention = nn.Part(NormedAttention)
    mlp = nn.Part(CorrectedMLP)


class MiniMaxM2(Decoder):
    architecture = "minimax-m2"

    layers = nn.Blocks(Layer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        return replace(read_common(metadata, n_vocab), **read_mixture(metadata))
