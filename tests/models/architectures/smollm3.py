"""SmolLM3: every fourth layer without positions, or a pattern of its own."""

from __future__ import annotations

from tests.models.families import Family

_SETTINGS = {"num_hidden_layers": 4, "head_dim": None, "hidden_size": 128, "tie_word_embeddings": False}

CASES = (
    Family("smollm3", "SmolLM3", _SETTINGS, contract=True),
    Family("smollm3-bf16", "SmolLM3", {**_SETTINGS, "no_rope_layers": [1, 0, 0, 1]}, dtype="BF16", seed=2),
)
