"""Qwen3-VL; the contract tests run its text part."""

from __future__ import annotations

from tests.models.families import Family

ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [6, 5, 5]}}
VISION = {"depth": 3, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2, "patch_size": 14,
          "out_hidden_size": 64, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]}  # fmt: skip
IDS = {"vision_start_token_id": 12, "vision_end_token_id": 13, "image_token_id": 14, "video_token_id": 15}
TIED, UNTIED = {"tie_word_embeddings": True, **IDS}, {"tie_word_embeddings": False, **IDS}

CASES = (
    Family("qwen3vl", "Qwen3VL", ROPE, vision=VISION, outer=TIED, contract=True),
    Family("qwen3vl-bf16", "Qwen3VL", ROPE, vision=VISION, outer=UNTIED, dtype="BF16"),
)
