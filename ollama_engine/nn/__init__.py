"""Blocks that models share, with weights bound by GGUF name.

Module, Part, Blocks, Scope      how a model declares and finds its weights
Linear, Embedding, RMSNorm       one weight each
Rope, read_rope                  rotary positions and their scaling
attention                        over a cache's history
ExpertLinear, route, sum_experts mixture of experts
"""

from __future__ import annotations

from ollama_engine.nn.attention import attention
from ollama_engine.nn.layers import Embedding, Factors, Linear, RMSNorm, product
from ollama_engine.nn.module import Blocks, Module, Part, Scope, Weight
from ollama_engine.nn.moe import ExpertLinear, route, sum_experts
from ollama_engine.nn.rope import Rope, read_rope

__all__ = [
    "Blocks",
    "Embedding",
    "ExpertLinear",
    "Factors",
    "Linear",
    "Module",
    "Part",
    "RMSNorm",
    "Rope",
    "Scope",
    "Weight",
    "attention",
    "product",
    "read_rope",
    "route",
    "sum_experts",
]
