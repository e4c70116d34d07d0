"""Phi-3, Phi-3.5 and Phi-4: `general.architecture` = phi3.

A Llama whose query, key and value projections are one matrix, and whose gate and up projections are another. Long
contexts have two sets of rotary factors (LongRoPE, Ding et al. 2024). Source: Abdin et al. 2024.

The config's sliding window applies in every layer, as in transformers; llama.cpp drops it. transformers uses the short
factors for texts up to the original context and the long factors beyond; a cache of rotated keys cannot switch. Here,
as in llama.cpp, the size of the context decides once: see `fit_context`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ollama_engine import nn
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.decoder import Decoder, PreNormLayer
from ollama_engine.models.fused import FusedAttention, FusedMLP
from ollama_engine.models.options import Options, read_common, read_windows


class Layer(PreNormLayer):
    attention = nn.Part(FusedAttention)
    mlp = nn.Part(FusedMLP)


class Phi3(Decoder):
    architecture = "phi3"

    layers = nn.Blocks(Layer, "n_layer")
    short_factors = nn.Factors("rope_factors_short", "n_rope_factors")
    long_factors = nn.Factors("rope_factors_long", "n_rope_factors")

    def __init__(self, metadata: Metadata, weights: Mapping[str, Tensor]) -> None:
        super().__init__(metadata, weights)
        self.fit_context(self.context_length)

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        o = read_common(metadata, n_vocab, longrope=True)
        return replace(o, windows=read_windows(metadata, o.n_layer, period=0))

    def fit_context(self, num_ctx: int) -> None:
        """Choose the long factors where `num_ctx` exceeds the original context."""
        self._long = num_ctx > self.options.rope.original_context

    def rope_factors(self, like: Tensor) -> Tensor | None:
        """The short or the long factors, f32 [n_rope_factors]; None where the model has none."""
        return (self.long_factors if self._long else self.short_factors).weight
