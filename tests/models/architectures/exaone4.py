"""EXAONE 4: without local layers, and with."""

from __future__ import annotations

from tests.models.families import LLAMA3, SHORT_PERIOD, Family

CASES = (
    Family("exaone4", "Exaone4", {**SHORT_PERIOD, "sliding_window": 24}, contract=True),
    Family(
        "exaone4-bf16",
        "Exaone4",
        {
            "sliding_window": None,
            "sliding_window_pattern": 1,
            "layer_types": ["full_attention"] * 3,
            "rope_parameters": LLAMA3,
        },
        dtype="BF16",
    ),
)
