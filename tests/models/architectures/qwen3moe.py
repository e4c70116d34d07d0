"""Qwen3 with experts, whose weights add up to 1 or do not."""

from __future__ import annotations

from tests.models.families import EXPERTS, Family

CASES = (
    Family("qwen3moe", "Qwen3Moe", {**EXPERTS, "norm_topk_prob": True}, contract=True),
    Family("qwen3moe-raw-weights-bf16", "Qwen3Moe", {**EXPERTS, "norm_topk_prob": False}, dtype="BF16"),
)
