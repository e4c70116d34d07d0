"""Gemma 3, its text part: `general.architecture` = gemma3.

Gemma 2 with normalized queries and keys in place of soft caps, and five local layers to each global one. Global layers
rotate by another base, and stretch positions where the context is long. Source: Gemma team 2025.

Early files of the 1B model carry a final soft cap of Gemma 2, which the model does not have; it is not read.
"""

from __future__ import annotations

from dataclasses import replace

from ollama_engine import nn
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models import gemma2
from ollama_engine.models.options import Options, read_common, read_local_ropes, read_windows
from ollama_engine.models.qwen3 import NormedAttention

WIDEST = 62
"""Layers of the 27B model; see gemma2."""


class Layer(gemma2.Layer):
    attention = nn.Part(NormedAttention)


class Gemma3Text(gemma2.Gemma):
    architecture = "gemma3"

    layers = nn.Blocks(Layer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        o = read_common(metadata, n_vocab, head_dim=256)
        windows = read_windows(metadata, o.n_layer, period=6)
        return replace(
            o,
            windows=windows,
            ropes=read_local_ropes(metadata, o.rope, windows, base=10000.0),
            attention_scale=gemma2.read_scale(metadata, o, WIDEST),
        )
