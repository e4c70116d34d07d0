"""The text part of Mistral Small 3.1 and later: a Llama under a name of its own.

Ministral 3 stretches positions with YaRN, and makes attention sharper far from the start (Nakanishi 2025).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.llama import Llama
from ollama_engine.models.options import Options

ORIGINAL = "rope.scaling.original_context_length"


@dataclass(frozen=True, kw_only=True)
class Mistral3Options(Options):
    temperature_scale: float
    """How fast scores grow sharper; 0: they do not."""
    temperature_period: int
    """Positions below this have scores as they are."""


class Mistral3Text(Llama):
    architecture = "mistral3"

    options: Mistral3Options

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

    def temperature(self, positions: Tensor) -> Tensor | None:
        o = self.options
        return nn.temperature(positions, o.temperature_scale, o.temperature_period) if o.temperature_scale else None


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
