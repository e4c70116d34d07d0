"""Granite 4, hybrid: Mamba-2 layers, attention in some blocks, with experts or without."""

from __future__ import annotations

from tests.models.families import Family

_SETTINGS = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "mamba_n_heads": 4, "mamba_d_state": 16,
    "mamba_n_groups": 2, "mamba_chunk_size": 16, "head_dim": None, "hidden_size": 128, "shared_intermediate_size": 48,
    "embedding_multiplier": 3.0, "residual_multiplier": 0.7, "attention_multiplier": 0.2, "logits_scaling": 2.0,
}  # fmt: skip

CASES = (
    Family("granitehybrid", "GraniteMoeHybrid", {**_SETTINGS, "num_local_experts": 0, "mamba_conv_bias": False,
        "tie_word_embeddings": True}, embeddings=0.05, contract=True),
    Family("granitehybrid-experts-bf16", "GraniteMoeHybrid", {**_SETTINGS, "num_local_experts": 8,
        "num_experts_per_tok": 3, "mamba_n_groups": 1, "position_embedding_type": "rope"}, dtype="BF16"),
)  # fmt: skip
