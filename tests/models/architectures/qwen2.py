"""Qwen2 and Qwen2.5."""

from __future__ import annotations

from tests.models.families import Family

CASES = (
    Family("qwen2", "Qwen2"),
    Family("qwen2-tied-bf16", "Qwen2", {"tie_word_embeddings": True}, dtype="BF16", contract=True),
)
