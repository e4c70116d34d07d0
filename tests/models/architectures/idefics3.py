"""Idefics 3; the contract tests run its text part."""

from __future__ import annotations

from tests.models.families import VISION, Family

_TEXT = {"model_type": "llama"}
_VISION = {**VISION, "num_attention_heads": 2}
_OUTER = {"image_token_id": 5}

CASES = (
    Family("idefics3", "Idefics3", _TEXT, vision=_VISION, outer=_OUTER),
    Family("idefics3-bf16", "Idefics3", _TEXT, vision=_VISION, outer=_OUTER, dtype="BF16", contract=True),
)
