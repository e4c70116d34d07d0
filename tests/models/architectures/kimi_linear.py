"""Kimi Linear: delta attention that decays by channels, latent attention in some blocks, experts in most."""

from __future__ import annotations

from tests.models.families import Family

_SETTINGS = {
    "num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
    "head_dim": None, "num_key_value_heads": 4, "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 32,
    "v_head_dim": 16, "linear_head_dim": 32, "linear_num_heads": 4, "linear_conv_kernel_dim": 4,
    "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_token": 3, "num_shared_experts": 1,
}  # fmt: skip

CASES = (
    Family("kimi-linear", "KimiLinear", _SETTINGS, contract=True),
    Family("kimi-linear-bf16", "KimiLinear", {**_SETTINGS, "num_hidden_layers": 3, "routed_scaling_factor": 1.5,
        "layer_types": ["full_attention", "linear_attention", "linear_attention"],
        "mlp_layer_types": ["dense", "dense", "sparse"], "num_shared_experts": 2, "linear_head_dim": 16,
        "qk_rope_head_dim": 8}, dtype="BF16"),
)  # fmt: skip
