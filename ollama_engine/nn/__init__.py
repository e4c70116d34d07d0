"""Blocks that models share, with weights bound by GGUF name.

Module, Part, Blocks, Scope      how a model declares and finds its weights
Linear, Embedding                linear map, token embedding
Vector, Scalar                   tensors without `.weight` behind their names; one number
RMSNorm, LayerNorm               norms
GatedMLP, GeluMLP                feed-forward blocks with a gate; gelu
PlainMLP, ErfMLP                 feed-forward blocks without a gate
Rope, read_rope                  rotary positions and their scaling
attention, soft_cap              attention over a cache's history
ExpertLinear, route, sum_experts mixture of experts
"""

from __future__ import annotations

from ollama_engine.nn.attention import attention, soft_cap
from ollama_engine.nn.feed_forward import ErfMLP, GatedMLP, GeluMLP, PlainMLP, gelu
from ollama_engine.nn.layers import Embedding, Factors, LayerNorm, Linear, Norm, RMSNorm, Scalar, Vector
from ollama_engine.nn.module import Blocks, Module, Part, Scope, Weight
from ollama_engine.nn.moe import ExpertLinear, route, route_chosen, sum_experts
from ollama_engine.nn.rope import Rope, check_base, read_rope

__all__ = [
    "Blocks",
    "Embedding",
    "ErfMLP",
    "ExpertLinear",
    "Factors",
    "GatedMLP",
    "GeluMLP",
    "LayerNorm",
    "Linear",
    "Module",
    "Norm",
    "Part",
    "PlainMLP",
    "RMSNorm",
    "Rope",
    "Scalar",
    "Scope",
    "Vector",
    "Weight",
    "attention",
    "check_base",
    "gelu",
    "read_rope",
    "route",
    "route_chosen",
    "soft_cap",
    "sum_experts",
]
