"""`expert_gating_func`: what makes a router's logits weights, in llama.cpp's numbers."""

from __future__ import annotations

__all__ = ["CHOSEN", "GATINGS", "SIGMOID", "SOFTMAX"]

SOFTMAX, SIGMOID, CHOSEN = 1, 2, 3
GATINGS = {SOFTMAX: "softmax", SIGMOID: "sigmoid", CHOSEN: "softmax over the chosen logits"}
