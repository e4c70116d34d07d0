"""Qwen3.5: gated delta nets, with gated attention in some blocks."""

from __future__ import annotations

from tests.models.families import Family

LINEAR = {
    "num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 24, "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
}  # fmt: skip
"""Settings of Qwen3.5 and Qwen3-Next."""

CASES = (
    Family("qwen35", "Qwen3_5", {**LINEAR, "tie_word_embeddings": True}, norms=0, contract=True),
    Family("qwen35-bf16", "Qwen3_5", {**LINEAR, "num_hidden_layers": 3, "linear_num_value_heads": 2,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"]}, norms=0, dtype="BF16"),
)  # fmt: skip
