"""GLM-4 and GLM-Z1 of 2025, dense, and GLM-OCR: `general.architecture` = glm4 (with experts: glm4moe.py).

A norm before and one behind attention and feed-forward as in Gemma 2; half of each head rotates, in neighbouring pairs;
gate and up projections are one matrix. GLM-OCR's heads rotate whole, by positions of several axes, and it reads images
(`glm_ocr`). Source: GLM team 2024 and 2025.
"""

from __future__ import annotations

from typing import Any

from ollama_engine import nn
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models import gemma2
from ollama_engine.models.decoder import Decoder
from ollama_engine.models.fused import FusedMLP
from ollama_engine.models.glm_ocr.multimodal import GlmOcrMultimodal
from ollama_engine.models.options import Options, read_common
from ollama_engine.models.qwen25vl.images import QwenImageReader
from ollama_engine.models.sections import read_sections, with_sections

SECTIONS = "rope.dimension_sections"


def make_mlp(scope: nn.Scope) -> FusedMLP | nn.GatedMLP:
    """The kind that the file has: Ollama's of GLM-OCR have two matrices."""
    return nn.GatedMLP(scope) if f"{scope.prefix}ffn_gate.weight" in scope.weights else FusedMLP(scope)


class Layer(gemma2.Layer):
    """One block. Queries, keys and values have biases where the file has them: GLM-4 9B does, 32B does not."""

    mlp = nn.Part[Any](make_mlp)


class Glm4(QwenImageReader, Decoder):
    architecture = "glm4"

    vision_tensor = "v.patch_embd_0.weight"
    vision_part = GlmOcrMultimodal

    layers = nn.Blocks(Layer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        """Positions have several axes where the file says so; converters make halves of neighbouring pairs then, since
        ggml turns nothing else by several.
        """
        o = read_common(metadata, n_vocab, rope_mode="neox" if SECTIONS in metadata else "norm")
        return with_sections(o, read_sections(metadata, SECTIONS, o.rope.n_dims // 2)) if SECTIONS in metadata else o
