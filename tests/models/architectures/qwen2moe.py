"""Qwen2 with experts, one of which all tokens share."""

from __future__ import annotations

from tests.models.families import EXPERTS, Family

_SETTINGS = {**EXPERTS, "shared_expert_intermediate_size": 64}

CASES = (
    Family("qwen2moe", "Qwen2Moe", _SETTINGS, contract=True),
    Family("qwen2moe-bf16", "Qwen2Moe", _SETTINGS, dtype="BF16"),
)
