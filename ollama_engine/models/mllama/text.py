"""The text part of Llama 3.2 Vision: a Llama of which some layers attend to images instead of to earlier tokens.

The cache decides which images a row sees. A row without an image takes nothing from a cross-attention layer, neither
from its attention nor from its feed-forward block: so were the published weights trained (Meta's llama-models).
Transformers drops only the latter, and lets rows before the first image attend to all images.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

from ollama_engine import nn
from ollama_engine.kvcache import ImageView, LayerShape, LayerView
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep, heads
from ollama_engine.models.base import ModelInputs
from ollama_engine.models.decoder import Decoder, PreNormLayer
from ollama_engine.models.mllama.options import TextOptions, read_text


class CrossAttention(nn.Module):
    """Grouped-query attention to images: queries and keys are normalized by head, and nothing is rotated."""

    q = nn.Linear("cross_attn_q_proj", "n_embd", "q_size")
    k = nn.Linear("cross_attn_k_proj", "n_embd", "kv_size")
    v = nn.Linear("cross_attn_v_proj", "n_embd", "kv_size")
    output = nn.Linear("cross_attn_o_proj", "q_size", "n_embd")
    q_norm = nn.RMSNorm("cross_attn_q_norm", "head_dim")
    k_norm = nn.RMSNorm("cross_attn_k_norm", "head_dim")

    def store(self, images: Tensor, cache: ImageView, o: TextOptions) -> None:
        """Put keys and values of new images f32 [n_embd, rows] into the cache."""
        keys = self.k_norm(_in_order(self.k(images), o), o.norm_eps)
        cache.put(keys, heads(self.v(images), o.head_dim))

    def forward(self, x: Tensor, cache: ImageView, o: TextOptions) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        queries = self.q_norm(_in_order(self.q(x), o), o.norm_eps)
        return self.output(nn.attention(queries, cache, o.attention_scale) * cache.gate)


def _in_order(x: Tensor, o: TextOptions) -> Tensor:
    """[head_dim * heads, n] -> [head_dim, heads, n], as the weights of the norms are ordered."""
    if not o.cross_pairs:
        return heads(x, o.head_dim)
    n_head, n = x.dim(0) // o.head_dim, x.dim(1)
    pairs = ops.reshape(x, 2, o.head_dim // 2, n_head, n)
    return ops.reshape(ops.cont(ops.permute(pairs, 1, 0, 2, 3)), o.head_dim, n_head, n)


class CrossLayer(nn.Module):
    """One block that attends to images. The tanh of a gate multiplies what a branch adds to the residual."""

    attn_norm = nn.RMSNorm("attn_norm", "n_embd")
    attention = nn.Part(CrossAttention)
    attn_gate = nn.Scalar("cross_attn_attn_gate")
    ffn_norm = nn.RMSNorm("ffn_norm", "n_embd")
    mlp = nn.Part(nn.GatedMLP)
    ffn_gate = nn.Scalar("cross_attn_mlp_gate")

    def forward(self, x: Tensor, images: Tensor | None, cache: ImageView, o: TextOptions) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        if images is not None:
            self.attention.store(images, cache, o)
        if not cache.sees_images:
            return x
        a = self.attention.forward(self.attn_norm(x, o.norm_eps), cache, o)
        x = x + ops.scale(a, math.tanh(self.attn_gate.value))
        m = self.mlp.forward(self.ffn_norm(x, o.norm_eps)) * cache.gate
        return x + ops.scale(m, math.tanh(self.ffn_gate.value))


def make_layer(scope: nn.Scope) -> PreNormLayer | CrossLayer:
    """One block."""
    return CrossLayer(scope) if scope.block in scope.options.cross_layers else PreNormLayer(scope)


class MllamaText(Decoder):
    """Tokens and images to logits."""

    options: TextOptions
    image_rows: int
    """Rows that a cross-attention layer stores for one image."""

    layers = nn.Blocks(make_layer, "n_layer")
    output = nn.Linear("output", "n_embd", "n_logits")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> TextOptions:
        return read_text(metadata, n_vocab)

    @property
    def n_vocab(self) -> int:
        """Length of a row of logits; the embedding has more rows."""
        return self.options.n_logits

    @property
    def cache_layers(self) -> tuple[LayerShape, ...]:
        """Tokens in the layers with self-attention, images in those with cross-attention."""
        o = self.options
        return tuple(
            replace(shape, image_rows=self.image_rows) if i in o.cross_layers else shape
            for i, shape in enumerate(super().cache_layers)
        )

    def through_layers(self, x: Tensor, inputs: ModelInputs, cache: LayerView) -> Tensor:
        """Run all layers: x [n_embd, n] -> [n_embd, n_outputs]."""
        o, factors = self.options, self.rope_factors(inputs.tokens)
        for i, layer in enumerate(self.layers):
            cache.set_layer(i)
            outputs = inputs.outputs if i == o.n_layer - 1 else None
            step = LayerStep(inputs.positions, o.ropes[i], self.layer_factors(i, factors), cache, outputs)
            if isinstance(layer, CrossLayer):
                x = step.output_rows(layer.forward(x, inputs.images, _images(cache), o))
            else:
                x = layer.forward(x, step, o)
            inputs.keep_aux(i + 1, x)
        return x


def _images(cache: LayerView) -> ImageView:
    """The cache of the current layer, which holds images."""
    return cast("ImageView", getattr(cache, "current", cache))
