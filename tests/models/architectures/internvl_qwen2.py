"""InternVL over Qwen2; the contract tests run its text part."""

from __future__ import annotations

from tests.models.families import VISION, Family

_TEXT = {"model_type": "qwen2", "hidden_size": 128, "head_dim": None}
_VISION = {**VISION, "num_attention_heads": 2, "image_size": [56, 56], "patch_size": [14, 14]}
_OUTER = {"image_token_id": 5}

CASES = (
    Family("internvl-qwen2", "InternVL", _TEXT, vision=_VISION, outer=_OUTER, contract=True),
    Family("internvl-qwen2-bf16", "InternVL", _TEXT, vision=_VISION, outer=_OUTER, dtype="BF16"),
)
