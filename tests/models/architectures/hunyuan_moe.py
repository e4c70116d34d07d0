"""Hunyuan with experts."""

from __future__ import annotations

from tests.models.families import Family

_SETTINGS = {"num_experts": 8, "moe_topk": 3}

CASES = (
    Family("hunyuan-moe", "HunYuanMoEV1", _SETTINGS, contract=True),
    Family("hunyuan-moe-bf16", "HunYuanMoEV1", _SETTINGS, dtype="BF16"),
)
