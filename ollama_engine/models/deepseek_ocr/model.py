"""DeepSeek-OCR: a small DeepSeek V2 without latent attention, and a vision part where the file has one.

All blocks but the first have experts, which a softmax chooses, and some that all tokens share; heads are those of a
Llama and rotate halves.
"""

from __future__ import annotations

from dataclasses import replace

from ollama_engine import nn
from ollama_engine.ml.gguf.gating import SOFTMAX
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.decoder import Decoder, PreNormLayer, SparseLayer
from ollama_engine.models.deepseek_ocr.multimodal import DeepSeekOcrMultimodal
from ollama_engine.models.experts import SparseMLP, read_mixture
from ollama_engine.models.images import ImageReader
from ollama_engine.models.options import Options, read_common


class ExpertsLayer(SparseLayer):
    mlp = nn.Part(SparseMLP)


def make_layer(scope: nn.Scope) -> PreNormLayer:
    """One block."""
    return (PreNormLayer if scope.block < scope.options.n_dense else ExpertsLayer)(scope)


class DeepSeekOcr(ImageReader, Decoder):
    architecture = "deepseek2-ocr"

    vision_tensor = "v.sam.patch_embd.weight"
    vision_part = DeepSeekOcrMultimodal

    layers = nn.Blocks(make_layer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        o = read_common(metadata, n_vocab)
        return replace(o, **read_mixture(metadata, gating=SOFTMAX, normalize=False))
