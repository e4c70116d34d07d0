"""gpt-oss: `general.architecture` = gpt-oss.

Every block is a mixture of experts with biases and a clamped SwiGLU; each head of attention has a sink, a score that
takes part in the softmax and adds nothing; every other layer attends to a window. Source: OpenAI 2025.

Here, as in the reference and in transformers, the ends of YaRN's ramp are not rounded to whole dimensions. ggml, and so
llama.cpp, rounds them, which rotates the keys of a long text by some tenths of a radian.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ollama_engine import nn
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.ops.operands import on_cpu_alone
from ollama_engine.models.attention import SelfAttention
from ollama_engine.models.decoder import Decoder, SparseLayer
from ollama_engine.models.options import Options, read_common, read_experts, read_windows

GAIN = 1.702
LIMIT = 7.0
"""Constants of the experts' activation; GGUF has no keys for them."""


class SinkAttention(SelfAttention):
    """Attention with biases everywhere, and a sink for each head."""

    q = nn.Linear("attn_q", "n_embd", "q_size", bias=True)
    k = nn.Linear("attn_k", "n_embd", "kv_size", bias=True)
    v = nn.Linear("attn_v", "n_embd", "kv_size", bias=True)
    output = nn.Linear("attn_output", "q_size", "n_embd", bias=True)
    sink = nn.Weight("attn_sinks", "n_head")

    def __init__(self, scope: nn.Scope) -> None:
        super().__init__(scope)
        self.sinks = self.sink.tensor


class BiasedExperts(nn.ExpertLinear):
    """One matrix and one bias [out, experts] for each expert."""

    bias: Tensor

    def bind(self, scope: nn.Scope) -> Any:
        """A bound copy; see Weight.bind."""
        bound = super().bind(scope)
        bound.bias = scope.require([f"{self.name}.bias"], self.dims[1:])
        return bound

    def __call__(self, x: Tensor, ids: Tensor) -> Tensor:
        return ops.add_id(super().__call__(x, ids), self.bias, ids)


class SparseMLP(nn.Mixture):
    """The weighted sum of the chosen experts, whose weights are a softmax over these alone."""

    router = nn.Linear("ffn_gate_inp", "n_embd", "n_expert", bias=True)
    gate = BiasedExperts("ffn_gate_exps", "n_embd", "n_ff_exp", "n_expert")
    up = BiasedExperts("ffn_up_exps", "n_embd", "n_ff_exp", "n_expert")
    down = BiasedExperts("ffn_down_exps", "n_ff_exp", "n_embd", "n_expert")

    def route(self, x: Tensor, o: Options) -> tuple[Tensor, Tensor]:
        return nn.route_chosen(self.router(x), o.n_expert_used)

    def forward(self, x: Tensor, o: Options) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        ids, weights = self.choose(x, o)
        x = ops.reshape(x, o.n_embd, 1, x.dim(1))
        return nn.sum_experts(self.down(activate(self.gate(x, ids), self.up(x, ids)), ids), weights)


def activate(gate: Tensor, up: Tensor) -> Tensor:
    """gate * sigmoid(GAIN * gate) * (up + 1), with gate below LIMIT and up within it."""
    if not on_cpu_alone(gate):
        return ops.clamped_swiglu(gate, up, GAIN, LIMIT)
    # ggml's kernel for the CPU computes number by number.
    gate, up = ops.clamp(gate, -math.inf, LIMIT), ops.clamp(up, -LIMIT, LIMIT)
    return ops.glu(ops.scale(gate, GAIN), ops.scale(up, 1 / GAIN, 1 / GAIN))


class Layer(SparseLayer):
    attention = nn.Part(SinkAttention)
    ffn_norm = nn.RMSNorm("post_attention_norm", "n_embd")
    mlp = nn.Part(SparseMLP)


class GptOss(Decoder):
    architecture = "gpt-oss"

    layers = nn.Blocks(Layer, "n_layer")

    def __init__(self, metadata: Metadata, weights: Mapping[str, Tensor]) -> None:
        super().__init__(metadata, weights)
        rope = self.options.rope
        self._divisors = rope.yarn_divisors() if rope.ext_factor else None
        if self._divisors is not None:
            exact = replace(rope, scale=1.0, ext_factor=0.0, attn_factor=rope.attn_factor * rope.yarn_magnitude)
            self.options = replace(self.options, rope=exact, ropes=(exact,) * self.options.n_layer)

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        o = read_common(metadata, n_vocab)
        windows = read_windows(metadata, o.n_layer, period=2)
        return replace(o, windows=windows, **read_experts(metadata, o.n_ff))

    def rope_factors(self, like: Tensor) -> Tensor | None:
        graph = like.owner
        if self._divisors is None or not isinstance(graph, Context):
            return super().rope_factors(like)
        return graph.from_floats(self._divisors)
