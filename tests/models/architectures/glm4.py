"""GLM-4 of 2025, with biases and without."""

from __future__ import annotations

from tests.models.families import Family

CASES = (
    Family("glm4", "Glm4", {"attention_bias": False}, contract=True),
    Family("glm4-bf16", "Glm4", {}, dtype="BF16"),
)
