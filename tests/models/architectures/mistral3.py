"""Mistral Small 3.1 and later; the contract tests run its text part."""

from __future__ import annotations

from tests.models.families import VISION, Family

_TEXT = {"model_type": "mistral", "sliding_window": None}
_VISION = {**VISION, "model_type": "pixtral", "num_attention_heads": 2, "hidden_act": "silu"}

CASES = (
    Family("mistral3", "Mistral3", _TEXT, vision=_VISION),
    Family("mistral3-bf16", "Mistral3", _TEXT, vision=_VISION, dtype="BF16", contract=True),
)
