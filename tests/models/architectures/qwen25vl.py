"""Qwen2.5-VL; the contract tests run its text part."""

from __future__ import annotations

from tests.models.families import Family

_TEXT = {"hidden_size": 128, "head_dim": None,
         "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]}}  # fmt: skip
_VISION = {"depth": 2, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2, "patch_size": 14,
         "out_hidden_size": 128, "fullatt_block_indexes": [1]}  # fmt: skip
_IDS = {"vision_start_token_id": 12, "vision_end_token_id": 13, "image_token_id": 14, "video_token_id": 15}
_TIED, _UNTIED = {"tie_word_embeddings": True, **_IDS}, {"tie_word_embeddings": False, **_IDS}

CASES = (
    Family("qwen25vl", "Qwen2_5_VL", _TEXT, vision=_VISION, outer=_TIED, contract=True),
    Family("qwen25vl-bf16", "Qwen2_5_VL", _TEXT, vision=_VISION, outer=_UNTIED, dtype="BF16"),
)
