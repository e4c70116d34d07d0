"""Qwen3.5: gated delta nets, with gated attention in some blocks."""

from __future__ import annotations

from tests.models.families import Family

VISION = {"depth": 3, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2, "patch_size": 14,
          "out_hidden_size": 64, "num_position_embeddings": 16}  # fmt: skip
OUTER = {"vision_start_token_id": 12, "vision_end_token_id": 13, "image_token_id": 14, "video_token_id": 15,
         "tie_word_embeddings": False}  # fmt: skip
LINEAR = {
    "num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 24, "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
}  # fmt: skip
"""Settings of Qwen3.5 and Qwen3-Next."""
AXES = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.25}

CASES = (
    Family("qwen35", "Qwen3_5", {**LINEAR, "tie_word_embeddings": True}, norms=0, contract=True),
    Family("qwen35-bf16", "Qwen3_5", {**LINEAR, "num_hidden_layers": 3, "linear_num_value_heads": 2,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"]}, norms=0, dtype="BF16"),
    Family("qwen35-vision-bf16", "Qwen3_5", {**LINEAR, "rope_parameters": AXES}, vision=VISION, outer=OUTER, norms=0,
           dtype="BF16"),
)  # fmt: skip
