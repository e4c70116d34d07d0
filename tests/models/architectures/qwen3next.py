"""Qwen3-Next: delta nets whose heads lie in groups, and experts."""

from __future__ import annotations

from tests.models.architectures.qwen35 import LINEAR
from tests.models.families import EXPERTS, Family

_SETTINGS = {**LINEAR, **EXPERTS, "shared_expert_intermediate_size": 48}

CASES = (
    Family("qwen3next", "Qwen3Next", _SETTINGS, norms=0, contract=True),
    Family("qwen3next-bf16", "Qwen3Next", {**_SETTINGS, "tie_word_embeddings": False}, norms=0, dtype="BF16"),
)
