"""EXAONE 4: without local layers, and with."""

from __future__ import annotations

from tests.models.families import SHORT_PERIOD, Family

_LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
           "high_freq_factor": 4.0, "original_max_position_embeddings": 32}  # fmt: skip

CASES = (
    Family("exaone4", "Exaone4", {**SHORT_PERIOD, "sliding_window": 24}, contract=True),
    Family(
        "exaone4-bf16",
        "Exaone4",
        {
            "sliding_window": None,
            "sliding_window_pattern": 1,
            "layer_types": ["full_attention"] * 3,
            "rope_parameters": _LLAMA3,
        },
        dtype="BF16",
    ),
)
