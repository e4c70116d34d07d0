"""EXAONE 4: `general.architecture` = exaone4.

Norms come after attention and feed-forward as in OLMo 2, and each head of queries and keys has one as in Qwen3. The
large model has three local layers to each global one, and only local ones have positions. Source: LG AI Research 2025.
"""

from __future__ import annotations

from dataclasses import replace

from ollama_engine import nn
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models import olmo2
from ollama_engine.models.decoder import Decoder
from ollama_engine.models.options import Options, read_common, read_windows
from ollama_engine.models.qwen3 import NormedAttention


class Layer(olmo2.Layer):
    attention = nn.Part(NormedAttention)


class Exaone4(Decoder):
    architecture = "exaone4"

    layers = nn.Blocks(Layer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        o = read_common(metadata, n_vocab)
        if not metadata.u32("attention.sliding_window", 0):
            return o
        windows = read_windows(metadata, o.n_layer, period=4)
        return replace(o, windows=windows, ropes=tuple(o.rope if window else None for window in windows))
