"""Qwen3."""

from __future__ import annotations

from tests.models.families import YARN, Family

CASES = (
    Family("qwen3", "Qwen3"),
    Family("qwen3-mscale", "Qwen3", {"rope_parameters": {**YARN, "mscale": 0.8, "mscale_all_dim": 0.5}}),
    Family("qwen3-tied-bf16", "Qwen3", {"tie_word_embeddings": True}, dtype="BF16", contract=True),
)
