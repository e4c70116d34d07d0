"""Blocks that models share, with weights bound by GGUF name.

Module, Part, Blocks, Scope      how a model declares and finds its weights
Linear, Embedding, HeadLinear    linear map, token embedding, a linear map for each head
linears                          several linear maps of the same values, side by side
Vector, Scalar                   tensors without `.weight` behind their names; one number
RMSNorm, LayerNorm               norms
GatedMLP, GeluMLP                feed-forward blocks with a gate; gelu
PlainMLP, ErfMLP, SquaredMLP     feed-forward blocks without a gate
Rope, SectionedRope, read_rope   rotary positions on one axis or several, and their scaling
attention, soft_cap, temperature  attention over a cache's history
CausalConv, delta_net, ssm_scan  recurrent layers, with a state for each sequence
ExpertLinear, Mixture, route, sum_experts  mixture of experts
                                 (also route_chosen, route_corrected, route_scored, route_sigmoid, of_best_groups,
                                 scaled_rows, weighted_inputs, sum_slots, read_ahead)
"""

from __future__ import annotations

from ollama_engine.nn.attention import attention, soft_cap, temperature
from ollama_engine.nn.feed_forward import ErfMLP, GatedMLP, GeluMLP, PlainMLP, SquaredMLP, gelu, gelu_erf, relu_squared
from ollama_engine.nn.layers import (
    Embedding,
    Factors,
    HeadLinear,
    LayerNorm,
    Linear,
    Norm,
    RMSNorm,
    Scalar,
    Vector,
    linears,
)
from ollama_engine.nn.module import Blocks, Module, Part, Scope, Weight
from ollama_engine.nn.moe import (
    ExpertLinear,
    Mixture,
    of_best_groups,
    read_ahead,
    route,
    route_chosen,
    route_corrected,
    route_scored,
    route_sigmoid,
    scaled_rows,
    sum_experts,
    sum_slots,
    weighted_inputs,
)
from ollama_engine.nn.recurrent import CausalConv, delta_net, ssm_scan
from ollama_engine.nn.rope import Rope, SectionedRope, check_base, read_rope

__all__ = [
    "Blocks",
    "CausalConv",
    "Embedding",
    "ErfMLP",
    "ExpertLinear",
    "Factors",
    "GatedMLP",
    "GeluMLP",
    "HeadLinear",
    "LayerNorm",
    "Linear",
    "Mixture",
    "Module",
    "Norm",
    "Part",
    "PlainMLP",
    "RMSNorm",
    "Rope",
    "Scalar",
    "Scope",
    "SectionedRope",
    "SquaredMLP",
    "Vector",
    "Weight",
    "attention",
    "check_base",
    "delta_net",
    "gelu",
    "gelu_erf",
    "linears",
    "of_best_groups",
    "read_ahead",
    "read_rope",
    "relu_squared",
    "route",
    "route_chosen",
    "route_corrected",
    "route_scored",
    "route_sigmoid",
    "scaled_rows",
    "soft_cap",
    "ssm_scan",
    "sum_experts",
    "sum_slots",
    "temperature",
    "weighted_inputs",
]
