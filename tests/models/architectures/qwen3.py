"""Qwen3."""

from __future__ import annotations

from tests.models.families import Family

CASES = (
    Family("qwen3", "Qwen3"),
    Family("qwen3-tied-bf16", "Qwen3", {"tie_word_embeddings": True}, dtype="BF16", contract=True),
)
