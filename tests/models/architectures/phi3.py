"""Phi 3 to 4, with a window, and with a long context's factors."""

from __future__ import annotations

from tests.models.families import Family

_LONGROPE = {
    "original_max_position_embeddings": 64,
    "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
        "long_factor": [1 + i / 3 for i in range(12)], "short_factor": [1 + i / 50 for i in range(12)],
    },
}  # fmt: skip
_WINDOW = {"sliding_window": 24, "hidden_size": 128, "tie_word_embeddings": True}

CASES = (
    Family("phi3", "Phi3", _WINDOW, contract=True),
    Family("phi3-longrope-bf16", "Phi3", {**_LONGROPE, "hidden_size": 128}, dtype="BF16", contract=True),
)
