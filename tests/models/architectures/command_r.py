"""Command R and R+."""

from __future__ import annotations

from tests.models.families import Family

CASES = (
    Family("command-r", "Cohere", contract=True),
    Family("command-r-plus-bf16", "Cohere", {"use_qk_norm": True, "attention_bias": True}, dtype="BF16", contract=True),
)
