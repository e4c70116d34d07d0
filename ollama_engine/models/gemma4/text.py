"""Gemma 4, its text part: `general.architecture` = gemma4.

Gemma 3 with heads of two sizes: global layers have larger ones, of which a part rotates. Values are normalized, and
where a layer has no projection for them they are its keys before those are normalized. In the small models the last
layers have no keys and values and attend to those of an earlier layer, and each token has an embedding for every layer
beside its usual one. The 26B model has experts beside the feed-forward block. Source: Google 2026 (transformers'
Gemma4TextModel).

Norms are stored as they are published; those of Gemma 2 and 3 are not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from ollama_engine import nn
from ollama_engine.kvcache import LayerShape, LayerView
from ollama_engine.kvcache.base import KVIndices
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models import gemma2
from ollama_engine.models.attention import Attention, LayerStep, heads
from ollama_engine.models.base import ModelInputs
from ollama_engine.models.gemma4.options import Gemma4Options, LayerOptions, read
from ollama_engine.models.gemma4.sharing import first_shared, numbers_of, outputs_seen, rows_of
from ollama_engine.models.options import Options

if TYPE_CHECKING:
    from ollama_engine.ml.graph.context import Context


@dataclass(frozen=True, slots=True)
class Step(LayerStep):
    """A block's arguments besides its input."""

    per_layer: Tensor | None = None
    """The tokens' embeddings for this layer, [n_per_layer, n]."""
    indices: KVIndices | None = None
    """What the rows see, where they are not all of the batch."""


class QueryAttention(Attention):
    """Attention of a layer that has queries only: keys and values are those of an earlier layer."""

    q = nn.Linear("attn_q", "n_embd", "q_size")
    q_norm = nn.RMSNorm("attn_q_norm", "head_dim")

    def forward(self, x: Tensor, step: LayerStep, o: Options) -> Tensor:
        q = step.rotate(self.q_norm(heads(self.q(x), o.head_dim), o.norm_eps))
        indices = step.indices if isinstance(step, Step) else None
        return self.output(nn.attention(q, step.cache, o.attention_scale, indices=indices))


class SelfAttention(QueryAttention):
    """Attention of a layer with keys and values of its own."""

    k = nn.Linear("attn_k", "n_embd", "kv_size")
    k_norm = nn.RMSNorm("attn_k_norm", "head_dim")
    v = nn.Linear("attn_v", "n_embd", "kv_size")

    def forward(self, x: Tensor, step: LayerStep, o: Options) -> Tensor:
        k = heads(self.k(x), o.head_dim)
        v = heads(self.v(x), o.head_dim) if self.v else k
        step.cache.put(step.rotate(self.k_norm(k, o.norm_eps)), ops.rms_norm(v, o.norm_eps))
        return super().forward(x, step, o)


class GlobalAttention(SelfAttention):
    """Attention to all tokens. In large models the values are the keys, before those are normalized and rotated."""

    v = nn.Linear("attn_v", "n_embd", "kv_size", optional=True)


def make_attention(scope: nn.Scope) -> QueryAttention:
    """The attention of one layer."""
    o: LayerOptions = scope.options
    if o.source != scope.block:
        return QueryAttention(scope)
    return (SelfAttention if o.windows[scope.block] else GlobalAttention)(scope)


class PerLayerInput(nn.Module):
    """What a token's embedding for this layer adds to its hidden state, which gates it."""

    gate = nn.Linear("inp_gate", "n_embd", "n_per_layer")
    projection = nn.Linear("proj", "n_per_layer", "n_embd")
    norm = nn.RMSNorm("post_norm", "n_embd")

    def forward(self, x: Tensor, per_layer: Tensor, o: Options) -> Tensor:
        """x [n_embd, n], embeddings [n_per_layer, n] -> [n_embd, n]."""
        return self.norm(self.projection(nn.gelu(self.gate(x)) * per_layer), o.norm_eps)


class GateAndUp(nn.Module):
    """The first two projections of each expert."""

    gate = nn.ExpertLinear("ffn_gate_exps", "n_embd", "n_ff_exp", "n_expert")
    up = nn.ExpertLinear("ffn_up_exps", "n_embd", "n_ff_exp", "n_expert")

    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """x [n_embd, 1, n] -> [n_ff_exp, used, n] twice."""
        return self.gate(x, ids), self.up(x, ids)


class FusedGateAndUp(nn.Module):
    """The same as halves of one matrix, as llama.cpp's converter writes them."""

    both = nn.ExpertLinear("ffn_gate_up_exps", "n_embd", "n_ff_exp_twice", "n_expert")

    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """x [n_embd, 1, n] -> [n_ff_exp, used, n] twice."""
        y = self.both(x, ids)
        shape, strides = (y.dim(0) // 2, y.dim(1), y.dim(2)), (y.stride(1), y.stride(2))
        gate, up = (ops.cont(ops.view(y, shape, strides, i * shape[0] * y.stride(0))) for i in (0, 1))
        return gate, up


def make_gate_and_up(scope: nn.Scope) -> GateAndUp | FusedGateAndUp:
    """Whichever the file has."""
    return (FusedGateAndUp if f"{scope.prefix}ffn_gate_up_exps.weight" in scope.weights else GateAndUp)(scope)


class Experts(nn.Mixture):
    """The weighted sum of the chosen experts' GeGLU. The router has a norm of its own, and each expert a factor."""

    router = nn.Linear("ffn_gate_inp", "n_embd", "n_expert")
    router_scale = nn.Vector("ffn_gate_inp.scale", "n_embd")
    gate_and_up = nn.Part[Any](make_gate_and_up)
    down = nn.ExpertLinear("ffn_down_exps", "n_ff_exp", "n_embd", "n_expert")
    scale = nn.Vector("ffn_down_exps.scale", "n_expert")

    def route(self, x: Tensor, o: Options) -> tuple[Tensor, Tensor]:
        scores = ops.scale(ops.rms_norm(x, o.norm_eps) * self.router_scale.tensor, 1 / math.sqrt(o.n_embd))
        return nn.route(self.router(scores), o.n_expert_used, normalize=True)

    def forward(self, x: Tensor, normed: Tensor, o: Options) -> Tensor:
        """x [n_embd, n], which chooses the experts, and what they read [n_embd, n] -> [n_embd, n]."""
        ids, weights = self.choose(x, o)
        chosen = ops.reshape(ops.cont(ids), o.n_expert_used * x.dim(1))
        scales = ops.get_rows(as_rows(self.scale.tensor, x), chosen)
        weights = weights * ops.reshape(scales, 1, o.n_expert_used, x.dim(1))
        gate, up = self.gate_and_up.forward(ops.reshape(normed, o.n_embd, 1, x.dim(1)), ids)
        return nn.sum_experts(self.down(nn.gelu(gate) * up, ids), weights)


class Layer(gemma2.Layer):
    attention = nn.Part[Any](make_attention)
    per_layer = nn.Part[Any](lambda scope: PerLayerInput(scope) if scope.options.n_per_layer else None)
    scale = nn.Scalar("layer_output_scale.weight")

    def __init__(self, scope: nn.Scope) -> None:
        self.options: LayerOptions = scope.options.layers[scope.block]
        super().__init__(replace(scope, options=self.options))

    def forward(self, x: Tensor, step: LayerStep, o: Options) -> Tensor:
        """x [n_embd, n] -> [n_embd, n], or fewer rows in the last layer."""
        x = super().forward(x, step, self.options)
        if isinstance(step, Step) and step.per_layer is not None:
            x = x + self.per_layer.forward(x, step.output_rows(step.per_layer), self.options)
        return ops.scale(x, self.scale.value)


class SparseLayer(Layer):
    """A block with experts beside its feed-forward part."""

    experts = nn.Part(Experts)
    post_norm_1 = nn.RMSNorm("post_ffw_norm_1", "n_embd")
    norm_2 = nn.RMSNorm("pre_ffw_norm_2", "n_embd")
    post_norm_2 = nn.RMSNorm("post_ffw_norm_2", "n_embd")

    def feed_forward(self, x: Tensor, o: Options) -> Tensor:
        dense = self.post_norm_1(super().feed_forward(x, o), o.norm_eps)
        sparse = self.experts.forward(x, self.norm_2(x, o.norm_eps), o)
        return dense + self.post_norm_2(sparse, o.norm_eps)


class PerLayerEmbedding(nn.Module):
    """Embeddings of tokens for each layer: of their ids, and of their usual embeddings."""

    table = nn.Embedding("per_layer_token_embd", "n_per_layer_all", "n_vocab")
    projection = nn.Linear("per_layer_model_proj", "n_embd", "n_per_layer_all")
    norm = nn.RMSNorm("per_layer_proj_norm", "n_per_layer")

    def forward(self, tokens: Tensor, x: Tensor, o: LayerOptions) -> Tensor:
        """Ids i32 [n] and their embeddings [n_embd, n] -> [n_per_layer, n_layer, n]."""
        shape = o.n_per_layer, o.n_layer, tokens.dim(0)
        of_ids = ops.reshape(ops.scale(self.table(tokens), math.sqrt(o.n_per_layer)), *shape)
        # First in the graph: where the CPU has the table, another device then computes all else in one piece.
        cast("Context", of_ids.owner).expand(of_ids)
        of_x = ops.reshape(ops.scale(self.projection(x), 1 / math.sqrt(o.n_embd)), *shape)
        return ops.scale(self.norm(of_x, o.norm_eps) + of_ids, 1 / math.sqrt(2))


class Gemma4Text(gemma2.Gemma2):
    options: Gemma4Options
    architecture = "gemma4"

    layers: nn.Blocks[Any] = nn.Blocks(
        lambda scope: (SparseLayer if scope.options.n_expert else Layer)(scope), "n_layer"
    )
    rope_freqs = nn.Weight("rope_freqs", "n_rope_factors")
    per_layer = nn.Part[Any](lambda scope: PerLayerEmbedding(scope) if scope.options.n_per_layer else None)

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Gemma4Options:
        return read(metadata, n_vocab)

    @property
    def cache_layers(self) -> tuple[LayerShape, ...]:
        """Layers that attend to those of another store nothing."""
        return tuple(
            LayerShape(
                kv_heads=layer.n_head_kv, key_dim=layer.head_dim, value_dim=layer.head_dim, window=window,
                causal_images=window is None,
            )
            if layer.source == i else LayerShape()
            for i, (layer, window) in enumerate(zip(self.options.layers, self.options.windows, strict=True))
        )  # fmt: skip

    def layer_factors(self, layer: int, factors: Tensor | None) -> Tensor | None:
        """Those of global layers leave a part of each head as it is."""
        return factors if self.options.windows[layer] is None else None

    def through_layers(self, x: Tensor, inputs: ModelInputs, cache: LayerView) -> Tensor:
        o = self.options
        per_layer = self.per_layer.forward(inputs.tokens, x, o) if self.per_layer is not None else None
        positions, outputs, seen = inputs.positions, inputs.outputs, {}
        factors = self.rope_factors(x)
        for i, layer in enumerate(self.layers):
            if i == first_shared(o.sources) and (seen := outputs_seen(o.sources[i:], outputs, cache)):
                # No later layer makes keys and values of the other rows.
                assert outputs is not None
                x, positions = ops.get_rows(x, outputs), numbers_of(positions, outputs)
                per_layer = None if per_layer is None else rows_of(per_layer, outputs)
                outputs = None
            cache.set_layer(o.sources[i])
            step = Step(
                positions, o.ropes[i], self.layer_factors(i, factors), cache, outputs if i == o.n_layer - 1 else None,
                per_layer=None if per_layer is None else nth(per_layer, i), indices=seen.get(o.sources[i]),
            )  # fmt: skip
            x = layer.forward(x, step, o)
            inputs.keep_aux(i + 1, x)
        return x


def as_rows(vector: Tensor, like: Tensor) -> Tensor:
    """A weight [n] as rows of one number, [1, n], in the graph of `like`."""
    return ops.view(vector, (1, vector.dim(0)), (vector.stride(0),), ctx=cast("Context", like.owner))


def nth(x: Tensor, i: int) -> Tensor:
    """x [m, layers, n] -> [m, n] of layer `i`."""
    return ops.cont(ops.view(x, (x.dim(0), x.dim(2)), (x.stride(2),), i * x.stride(1)))
