"""ERNIE 4.5, dense."""

from __future__ import annotations

from tests.models.families import Family

CASES = (
    Family("ernie4_5", "Ernie4_5", {"tie_word_embeddings": False}, contract=True),
    Family("ernie4_5-bf16", "Ernie4_5", {"tie_word_embeddings": True}, dtype="BF16"),
)
