"""SmolLM3: `general.architecture` = smollm3.

A Llama in which every fourth layer has no positions (Yang et al. 2025). Source: Hugging Face 2025.
"""

from __future__ import annotations

from dataclasses import replace

from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.decoder import Decoder
from ollama_engine.models.options import Options, read_common

PERIOD = 4


class SmolLM3(Decoder):
    architecture = "smollm3"

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        o = read_common(metadata, n_vocab, rope_mode="norm")
        usual = [(i + 1) % PERIOD != 0 for i in range(o.n_layer)]
        rotates = metadata.bools("attention.rope_pattern", o.n_layer, usual)
        return replace(o, ropes=tuple(o.rope if turned else None for turned in rotates))
