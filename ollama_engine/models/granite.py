"""Granite 2 to 4, dense and with experts: `general.architecture` = granite or granitemoe.

A Llama whose embeddings, residuals, scores and logits are scaled. Small models have experts in every block, and some of
these one that all tokens share. Sources: IBM 2024 and 2025.
"""

from __future__ import annotations

from dataclasses import replace

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep
from ollama_engine.models.decoder import Decoder, PreNormLayer, SparseLayer
from ollama_engine.models.experts import SparseMLP
from ollama_engine.models.options import Options, OptionsT, read_common, read_experts


class ScaledLayer(PreNormLayer):
    def forward(self, x: Tensor, step: LayerStep, o: Options) -> Tensor:
        a = step.output_rows(self.attention.forward(self.attn_norm(x, o.norm_eps), step, o))
        x = ops.scale(a, o.residual_scale) + step.output_rows(x)
        return ops.scale(self.feed_forward(self.ffn_norm(x, o.norm_eps), o), o.residual_scale) + x


class ScaledSparseLayer(ScaledLayer, SparseLayer):
    mlp = nn.Part(SparseMLP)


def make_layer(scope: nn.Scope) -> ScaledLayer:
    """One block: dense, or with experts where the file has them."""
    return (ScaledSparseLayer if scope.options.n_expert else ScaledLayer)(scope)


def with_scales(metadata: Metadata, o: OptionsT) -> OptionsT:
    """The options with the scales and experts of Granite. Raises ModelFormatError."""
    scale = metadata.f32("logit_scale", 1.0)
    if scale == 0:
        raise ModelFormatError("logit_scale, which logits are divided by, must not be 0")
    # llama.cpp's switch for rotation in these architectures.
    rotates = metadata.bool("rope.scaling.finetuned", True)
    return replace(
        o, **(read_experts(metadata, o.n_ff) if metadata.u32("expert_count", 0) else {}),
        n_ff_shexp=metadata.u32("expert_shared_feed_forward_length", 0), logit_scale=1 / scale,
        embedding_scale=metadata.f32("embedding_scale", 1.0), residual_scale=metadata.f32("residual_scale", 1.0),
        attention_scale=metadata.f32("attention.scale", 0.0) or o.attention_scale,
        ropes=o.ropes if rotates else (None,) * o.n_layer,
    )  # fmt: skip


class Granite(Decoder):
    architecture = "granite"

    layers = nn.Blocks(make_layer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        return with_scales(metadata, read_common(metadata, n_vocab, rope_mode="norm"))

    def embed(self, tokens: Tensor) -> Tensor:
        return ops.scale(super().embed(tokens), self.options.embedding_scale)

    def logits(self, x: Tensor) -> Tensor:
        return ops.scale(super().logits(x), self.options.logit_scale)


class GraniteMoe(Granite):
    architecture = "granitemoe"
