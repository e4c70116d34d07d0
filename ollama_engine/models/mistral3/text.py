"""The text part of Mistral Small 3.1 and later: a Llama under a name of its own.

Ministral 3 stretches positions with YaRN, and makes attention sharper far from the start (Nakanishi 2025).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.kvcache import LayerView
from ollama_engine.ml import ops
from ollama_engine.ml.metadata import Metadata
from ollama_engine.ml.tensor import Tensor
from ollama_engine.models.attention import LayerStep, SelfAttention
from ollama_engine.models.base import ModelInputs
from ollama_engine.models.decoder import PreNormLayer
from ollama_engine.models.llama import Llama
from ollama_engine.models.options import Options

ORIGINAL = "rope.scaling.original_context_length"


@dataclass(frozen=True, kw_only=True)
class Mistral3Options(Options):
    temperature_scale: float
    """How fast scores grow sharper; 0: they do not."""
    temperature_period: int
    """Positions below this have scores as they are."""


@dataclass(frozen=True, slots=True)
class Mistral3Step(LayerStep):
    temperature: Tensor | None = None
    """f32 [1, 1, n]: what queries are multiplied by."""


class Mistral3Attention(SelfAttention):
    def forward(self, x: Tensor, step: LayerStep, o: Options) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        q, k, v = self.project(x, o)
        q, k = step.rotate(q), step.rotate(k)
        if isinstance(step, Mistral3Step) and step.temperature is not None:
            q = q * step.temperature
        step.cache.put(k, v)
        return self.output(nn.attention(q, step.cache, o.attention_scale))


class Layer(PreNormLayer):
    attention = nn.Part(Mistral3Attention)


class Mistral3Text(Llama):
    architecture = "mistral3"

    options: Mistral3Options
    layers: nn.Blocks[Any] = nn.Blocks(Layer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Mistral3Options:
        o = Llama.read_options(metadata, n_vocab)
        # llama.cpp's key, and Ollama's.
        scale = metadata.f32("attention.temperature_scale", metadata.f32("rope.scaling_beta", 0.0))
        period = metadata.u32(ORIGINAL, 0)
        if scale and not period:
            raise ModelFormatError(
                f"{metadata.key('attention.temperature_scale')} is {scale:g}, but there is no {metadata.key(ORIGINAL)} "
                "from which on attention grows sharper"
            )
        rope = _with_magnitude(o.rope, metadata)
        return Mistral3Options(
            **{**vars(o), "rope": rope, "ropes": (rope,) * o.n_layer},
            temperature_scale=scale,
            temperature_period=period,
        )

    def through_layers(self, x: Tensor, inputs: ModelInputs, cache: LayerView) -> Tensor:
        o, factors, temperature = self.options, self.rope_factors(inputs.tokens), self._temperature(inputs.positions)
        for i, layer in enumerate(self.layers):
            cache.set_layer(i)
            outputs = inputs.outputs if i == o.n_layer - 1 else None
            x = layer.forward(x, Mistral3Step(inputs.positions, o.ropes[i], factors, cache, outputs, temperature), o)
        return x

    def _temperature(self, positions: Tensor) -> Tensor | None:
        """1 + scale * ln(1 + floor(p / period)) of positions i32 [n], f32 [1, 1, n]."""
        o = self.options
        if not o.temperature_scale:
            return None
        # Half a position more keeps whole quotients whole when the reciprocal is rounded.
        p = ops.scale(ops.cast(positions, "f32"), 1 / o.temperature_period, 0.5 / o.temperature_period)
        grown = ops.log(ops.scale(ops.unary(p, "floor"), 1.0, 1.0))
        return ops.reshape(ops.scale(grown, o.temperature_scale, 1.0), 1, 1, positions.dim(0))


def _with_magnitude(rope: nn.Rope, metadata: Metadata) -> nn.Rope:
    """YaRN's magnitude as the quotient of two, where the file says so: DeepSeek's way, which Ministral 3 has.

    llama.cpp has a key for the denominator and takes the numerator to be that of 1; Ollama has keys for both.
    """
    below = metadata.f32("rope.scaling.yarn_log_multiplier", metadata.f32("rope.scaling.mscale_all_dim", 0.0))
    above = metadata.f32("rope.scaling.mscale", 1.0)
    if not rope.ext_factor or not below or not above or "rope.scaling.yarn_attn_factor" in metadata:
        return rope
    grown = 0.1 * math.log(1 / rope.scale)
    return replace(rope, attn_factor=(1 + above * grown) / (1 + below * grown) / rope.yarn_magnitude)
