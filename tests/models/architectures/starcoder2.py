"""StarCoder2, without and with its window."""

from __future__ import annotations

from tests.models.families import Family

CASES = (
    Family("starcoder2", "Starcoder2", {"tie_word_embeddings": True, "use_bias": False}, contract=True),
    Family("starcoder2-window-bf16", "Starcoder2", {"sliding_window": 24}, dtype="BF16", seed=3),
)
