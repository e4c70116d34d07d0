"""The text part of Mistral Small 3.1 and later: a Llama under a name of its own."""

from __future__ import annotations

from collections.abc import Mapping

from ollama_engine.errors import UnsupportedModelError
from ollama_engine.ml.metadata import Metadata
from ollama_engine.ml.tensor import Tensor
from ollama_engine.models.llama import Llama

TEMPERATURES = ("attention.temperature_scale", "rope.scaling_beta")
"""Keys, llama.cpp's and Ollama's, of Ministral 3's attention scale, which grows with the position."""


class Mistral3Text(Llama):
    architecture = "mistral3"

    def __init__(self, metadata: Metadata, weights: Mapping[str, Tensor]) -> None:
        for name in TEMPERATURES:
            if metadata.f32(name, 0.0):
                raise UnsupportedModelError(
                    f"{metadata.key(name)} is {metadata.f32(name)}: attention that grows sharper with the length of a "
                    "text, as in Ministral 3, is not supported yet"
                )
        super().__init__(metadata, weights)
