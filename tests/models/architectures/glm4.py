"""GLM-4 of 2025, with biases and without."""

from __future__ import annotations

from tests.models.families import LLAMA3, Family

CASES = (
    Family("glm4", "Glm4", {"attention_bias": False}, contract=True),
    Family("glm4-llama3", "Glm4", {"rope_parameters": {**LLAMA3, "partial_rotary_factor": 0.5}}),
    Family("glm4-bf16", "Glm4", {}, dtype="BF16"),
)
