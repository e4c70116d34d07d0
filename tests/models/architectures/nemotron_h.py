"""Nemotron-H: Mamba-2, attention and feed-forward layers, one in each block."""

from __future__ import annotations

from tests.models.families import Family

MAMBA = {
    "num_hidden_layers": None, "mamba_num_heads": 6, "mamba_head_dim": 24, "ssm_state_size": 16, "n_groups": 2,
    "time_step_min": 1e-9, "chunk_size": 16,
}  # fmt: skip
"""Settings of both architectures. transformers takes time_step_min as the least step in prompts; nobody else does."""
_SETTINGS = {**MAMBA, "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"]}

CASES = (
    Family("nemotron_h", "NemotronH", {**_SETTINGS, "use_conv_bias": False}, seed=2, contract=True),
    Family("nemotron_h-bf16", "NemotronH", {**MAMBA, "n_groups": 1, "conv_kernel": 3, "use_bias": True,
        "mlp_bias": True, "layers_block_type": ["full_attention", "linear_attention", "mlp"]}, dtype="BF16"),
)  # fmt: skip
