"""Gemma 3n, its text part: `general.architecture` = gemma3n.

A token has several streams of hidden values (AltUp, Baykal et al. 2023). Each block predicts all of them, computes one,
and corrects all by what it computed. Beside attention stands a product of low rank (LAuReL, Menghani et al. 2024); the
gates of early layers are zero but for the largest few. Per-layer embeddings and shared keys and values are those of
Gemma 4. Source: Google 2025 (transformers' Gemma3nTextModel). Norms are stored as they are published.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.kvcache import LayerShape, LayerView
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models import gemma2
from ollama_engine.models.attention import LayerStep
from ollama_engine.models.base import ModelInputs
from ollama_engine.models.gemma4.options import PER_LAYER, LayerOptions, read_sources
from ollama_engine.models.gemma4.sharing import first_shared, numbers_of, outputs_seen, rows_of
from ollama_engine.models.gemma4.text import PerLayerEmbedding, PerLayerInput, QueryAttention, SelfAttention, Step, nth
from ollama_engine.models.options import Options, extended, read_common, read_local_ropes, read_windows

if TYPE_CHECKING:
    from ollama_engine.ml.graph.context import Context

PERIOD = 5
"""One layer in so many is global, where the file does not say which are."""
LEAST = 1e-5
"""A stream's mean square counts as at least this."""


@dataclass(frozen=True, kw_only=True)
class Gemma3nOptions(LayerOptions):
    n_streams: int
    active: int
    """The stream that blocks compute."""
    n_laurel: int
    """Rank of the product beside attention."""
    sources: tuple[int, ...]
    """For each layer the one whose keys and values it attends to."""
    cutoffs: tuple[float, ...]
    """For each layer how many deviations above the mean a gate must be, not to be zero; 0 or less for no such limit."""

    @property
    def n_projected(self) -> int:
        """Streams that are made of the first."""
        return self.n_streams - 1

    @property
    def n_coefficients(self) -> int:
        """Numbers by which streams are mixed."""
        return self.n_streams**2


class AltUp(nn.Module):
    """Prediction of all streams, and their correction by the computed one."""

    router_norm = nn.RMSNorm("altup_router_norm", "n_embd")
    router = nn.Linear("altup_router", "n_embd", "n_streams")
    prediction = nn.Linear("altup_predict_coef", "n_streams", "n_coefficients")
    correction = nn.Linear("altup_correct_coef", "n_streams", "n_streams")

    def route(self, x: Tensor, o: Options) -> Tensor:
        """x [n_embd, n] -> [n_streams, n], from -1 to 1."""
        return ops.unary(self.router(ops.scale(self.router_norm(x, o.norm_eps), 1 / o.n_embd)), "tanh")

    def predict(self, streams: Tensor, o: Gemma3nOptions) -> Tensor:
        """Streams [n_embd, n_streams, n] plus a mixture of all of them for each."""
        mixing = self.prediction(self.route(nth(streams, o.active), o))
        mixing = ops.reshape(mixing, o.n_streams, o.n_streams, streams.dim(2))
        return streams + ops.mul_mat(ops.cont(ops.permute(streams, 1, 0, 2, 3)), mixing)

    def correct(self, streams: Tensor, computed: Tensor, o: Gemma3nOptions) -> Tensor:
        """Streams plus multiples of what [n_embd, n] was computed beyond the prediction."""
        factors = ops.scale(self.correction(self.route(computed, o)), 1.0, 1.0)
        beyond = computed - nth(streams, o.active)
        return streams + nn.weighted_inputs(beyond, ops.reshape(factors, 1, o.n_streams, computed.dim(1)))


class Laurel(nn.Module):
    """x + norm(right(left x)), whose rank is low."""

    left = nn.Linear("laurel_l", "n_embd", "n_laurel")
    right = nn.Linear("laurel_r", "n_laurel", "n_embd")
    norm = nn.RMSNorm("laurel_post_norm", "n_embd")

    def forward(self, x: Tensor, o: Options) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        return x + self.norm(self.right(self.left(x)), o.norm_eps)


class SparseMLP(nn.GeluMLP):
    """GeGLU whose gates are lowered by `cutoff` deviations above their mean, and 0 where they are below that."""

    def __init__(self, scope: nn.Scope) -> None:
        self.cutoff: float = scope.options.cutoffs[scope.block]
        super().__init__(scope)

    def forward(self, x: Tensor) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        gate, up = nn.linears(x, self.gate, self.up)
        if self.cutoff > 0:
            gate = gate - ops.mean(gate)
            gate = ops.unary(gate - ops.scale(magnitude(gate), self.cutoff), "relu")
        return self.down(nn.gelu(gate) * up)


class Layer(nn.Module):
    altup = nn.Part(AltUp)
    laurel = nn.Part(Laurel)
    attn_norm = nn.RMSNorm("attn_norm", "n_embd")
    attention = nn.Part[Any](
        lambda scope: (SelfAttention if scope.options.sources[scope.block] == scope.block else QueryAttention)(scope)
    )
    post_attention_norm = nn.RMSNorm("post_attention_norm", "n_embd")
    ffn_norm = nn.RMSNorm("ffn_norm", "n_embd")
    mlp = nn.Part(SparseMLP)
    post_ffw_norm = nn.RMSNorm("post_ffw_norm", "n_embd")
    output_scale = nn.Weight("altup_correct_scale", "n_embd")
    per_layer = nn.Part(PerLayerInput)

    def forward(self, streams: Tensor, step: LayerStep, o: Gemma3nOptions) -> Tensor:
        """Streams [n_embd, n_streams, n] -> the same, or of fewer tokens in the last layer."""
        assert isinstance(step, Step)
        assert step.per_layer is not None
        streams = self.altup.predict(streams, o)
        normed = self.attn_norm(nth(streams, o.active), o.norm_eps)
        a = step.output_rows(self.attention.forward(normed, step, o))
        streams = _output_tokens(streams, step)
        x = self.post_attention_norm(a, o.norm_eps) + nth(streams, o.active)
        x = ops.scale(x + self.laurel.forward(step.output_rows(normed), o), 1 / math.sqrt(2))
        x = self.post_ffw_norm(self.mlp.forward(self.ffn_norm(x, o.norm_eps)), o.norm_eps) + x
        streams = self.altup.correct(streams, x, o)
        scaled = nth(streams, o.active) * self.output_scale.tensor
        added = self.per_layer.forward(scaled, step.output_rows(step.per_layer), o)
        return _add_to_later(streams, added)


def _output_tokens(streams: Tensor, step: LayerStep) -> Tensor:
    """Streams [n_embd, n_streams, n] of the tokens that are needed."""
    size, count, n = streams.dim(0), streams.dim(1), streams.dim(2)
    rows = step.output_rows(ops.reshape(streams, size * count, n))
    return ops.reshape(rows, size, count, rows.dim(1))


def _add_to_later(streams: Tensor, x: Tensor) -> Tensor:
    """Streams [n_embd, n_streams, n], with x [n_embd, n] added to all but the first."""
    first = ops.reshape(nth(streams, 0), streams.dim(0), 1, streams.dim(2))
    later = later_streams(streams) + ops.reshape(x, x.dim(0), 1, x.dim(1))
    return ops.concat(first, later, 1)


def later_streams(streams: Tensor) -> Tensor:
    """Streams [n_embd, n_streams, n] but for the first."""
    shape = streams.dim(0), streams.dim(1) - 1, streams.dim(2)
    return ops.cont(ops.view(streams, shape, (streams.stride(1), streams.stride(2)), streams.stride(1)))


def magnitude(x: Tensor, least: float = 0.0) -> Tensor:
    """The root of the mean square of each row of x [m, ...] -> [1, ...]."""
    return ops.sqrt(ops.clamp(ops.mean(ops.sqr(x)), least, math.inf))


class StreamProjection(nn.Weight):
    """A matrix for each stream but the first, whose results are scaled to the first's magnitude."""

    def __call__(self, x: Tensor, first: Tensor) -> Tensor:
        """x [n_embd, n_projected, n], first [n_embd, n] -> [n_embd, n_projected, n]."""
        size, count, n = x.dim(0), x.dim(1), x.dim(2)
        weight = ops.view(self.tensor, (size, size, count), ctx=cast("Context", x.owner))
        y = ops.mul_mat(weight, ops.cont(ops.permute(x, 0, 2, 1, 3)))
        y = ops.cont(ops.permute(y, 0, 2, 1, 3))
        return y * ops.reshape(magnitude(first), 1, 1, n) / magnitude(y, LEAST)


class Gemma3n(gemma2.Gemma2):
    options: Gemma3nOptions
    architecture = "gemma3n"
    gives_aux_states = False  # between blocks it has several streams

    layers = nn.Blocks(Layer, "n_layer")
    per_layer = nn.Part(PerLayerEmbedding)
    split = StreamProjection("altup_proj", "n_embd", "n_embd", "n_projected")
    join = StreamProjection("altup_unembd_proj", "n_embd", "n_embd", "n_projected")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Gemma3nOptions:
        return read(metadata, n_vocab)

    @property
    def cache_layers(self) -> tuple[LayerShape, ...]:
        """Layers that attend to those of another store nothing."""
        own = (source == i for i, source in enumerate(self.options.sources))
        return tuple(shape if mine else LayerShape() for shape, mine in zip(super().cache_layers, own, strict=True))

    def through_layers(self, x: Tensor, inputs: ModelInputs, cache: LayerView) -> Tensor:
        o = self.options
        per_layer = self.per_layer.forward(inputs.tokens, x, o)
        copies = ops.repeat(ops.reshape(x, o.n_embd, 1, x.dim(1)), o.n_embd, o.n_projected, x.dim(1))
        streams = ops.concat(ops.reshape(x, o.n_embd, 1, x.dim(1)), self.split(copies, x), 1)
        positions, outputs, seen = inputs.positions, inputs.outputs, {}
        factors = self.rope_factors(x)
        for i, layer in enumerate(self.layers):
            if i == first_shared(o.sources) and (seen := outputs_seen(o.sources[i:], outputs, cache)):
                # No later layer makes keys and values of the other rows.
                assert outputs is not None
                streams, per_layer = rows_of(streams, outputs), rows_of(per_layer, outputs)
                positions, outputs = numbers_of(positions, outputs), None
            cache.set_layer(o.sources[i])
            step = Step(
                positions, o.ropes[i], self.layer_factors(i, factors), cache, outputs if i == o.n_layer - 1 else None,
                per_layer=nth(per_layer, i), indices=seen.get(o.sources[i]),
            )  # fmt: skip
            streams = layer.forward(streams, step, o)
        first = nth(streams, 0)
        joined = nn.sum_slots(self.join(later_streams(streams), first))
        return ops.scale(first + joined, 1 / o.n_streams)


def read(metadata: Metadata, n_vocab: int) -> Gemma3nOptions:
    """Options of a file. Raises ModelFormatError."""
    o = read_common(metadata, n_vocab, head_dim=256)
    windows = read_windows(metadata, o.n_layer, PERIOD)
    n_streams, active = metadata.u32("altup.num_inputs", 4), metadata.u32("altup.active_idx", 0)
    # No number but a list: the quantile of 0 is -inf.
    cutoffs = metadata.list("activation_sparsity_scale", [0.0] * o.n_layer)
    if n_streams < 2 or active >= n_streams or len(cutoffs) != o.n_layer:
        raise ModelFormatError(
            f"altup.num_inputs is {n_streams}, altup.active_idx {active}, and activation_sparsity_scale has "
            f"{len(cutoffs)} values; expected 2 or more, one below that, and {o.n_layer}"
        )
    return replace(
        extended(
            o, Gemma3nOptions, n_per_layer=metadata.u32(PER_LAYER), n_streams=n_streams, active=active,
            n_laurel=metadata.u32("laurel_rank", 64), sources=read_sources(metadata, windows), cutoffs=tuple(cutoffs),
        ),
        windows=windows,
        ropes=read_local_ropes(metadata, o.rope, windows, base=10000.0),
        attention_scale=1.0,
        logit_softcap=gemma2.read_cap(metadata, "final_logit_softcapping", 30.0),
    )  # fmt: skip
