"""GLM-4 and GLM-Z1 of 2025, dense: `general.architecture` = glm4 (with experts: glm4moe.py).

A norm before and one behind attention and feed-forward as in Gemma 2; half of each head rotates, in neighbouring pairs;
gate and up projections are one matrix. Source: GLM team 2024 and 2025.
"""

from __future__ import annotations

from ollama_engine import nn
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models import gemma2
from ollama_engine.models.decoder import Decoder
from ollama_engine.models.fused import FusedMLP
from ollama_engine.models.options import Options, read_common


class Layer(gemma2.Layer):
    """One block. Queries, keys and values have biases where the file has them: GLM-4 9B does, 32B does not."""

    mlp = nn.Part(FusedMLP)


class Glm4(Decoder):
    architecture = "glm4"

    layers = nn.Blocks(Layer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        return read_common(metadata, n_vocab, rope_mode="norm")
