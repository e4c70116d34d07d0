"""LLaVA; the contract tests run its text part."""

from __future__ import annotations

from tests.models.families import VISION, Family

_TEXT = {"model_type": "llama"}
_VISION = {**VISION, "model_type": "clip_vision_model", "num_attention_heads": 2}
_OUTER = {"image_token_index": 5}

CASES = (
    Family("llava", "Llava", _TEXT, vision=_VISION, outer=_OUTER),
    Family("llava-bf16", "Llava", _TEXT, vision=_VISION, outer=_OUTER, dtype="BF16", contract=True),
)
