"""Qwen3.5 with experts."""

from __future__ import annotations

from tests.models.architectures.qwen35 import AXES, LINEAR, OUTER, VISION
from tests.models.families import EXPERTS, Family

_SETTINGS = {**LINEAR, **EXPERTS, "shared_expert_intermediate_size": 48}

CASES = (
    Family("qwen35moe", "Qwen3_5Moe", _SETTINGS, norms=0, contract=True),
    Family("qwen35moe-bf16", "Qwen3_5Moe", {**_SETTINGS, "tie_word_embeddings": False}, norms=0, dtype="BF16"),
    Family("qwen35moe-vision-bf16", "Qwen3_5Moe", {**_SETTINGS, "tie_word_embeddings": False, "rope_parameters": AXES},
           vision=VISION, outer=OUTER, norms=0, dtype="BF16"),
)  # fmt: skip
