"""Falcon-H1: attention and a Mamba-2 layer side by side, with multipliers of all kinds."""

from __future__ import annotations

from tests.models.families import Family

_SETTINGS = {
    "mamba_d_ssm": 96, "mamba_n_heads": 4, "mamba_d_state": 16, "mamba_n_groups": 2, "mamba_chunk_size": 16,
    "embedding_multiplier": 1.5, "lm_head_multiplier": 0.5, "key_multiplier": 0.7, "attention_in_multiplier": 0.9,
    "attention_out_multiplier": 0.8, "ssm_in_multiplier": 1.2, "ssm_out_multiplier": 0.6,
    "mlp_multipliers": [0.9, 0.7], "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7],
}  # fmt: skip

CASES = (
    Family("falcon-h1", "FalconH1", {**_SETTINGS, "mamba_conv_bias": False}, contract=True),
    Family("falcon-h1-norm-bf16", "FalconH1", {**_SETTINGS, "mamba_rms_norm": True, "mamba_norm_before_gate": False,
        "tie_word_embeddings": True}, dtype="BF16", tolerance=2e-4),
    # One row norms a group of small numbers: there transformers in f32 is 8e-5 from itself in f64, and we are 3e-5.
)  # fmt: skip
