"""DeepSeek V2 and V3, and GLM-4.7-Flash: latent attention, and experts chosen by groups and corrected."""

from __future__ import annotations

from tests.models.families import Family

SIZES = {
    "head_dim": None, "num_key_value_heads": 4, "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 32,
    "v_head_dim": 20, "q_lora_rank": 40, "first_k_dense_replace": 1, "moe_intermediate_size": 32, "n_routed_experts": 8,
    "num_experts_per_tok": 3, "n_shared_experts": 2,
}  # fmt: skip
# The numbers of the published models.
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "original_max_position_embeddings": 32,
    "beta_fast": 32.0, "beta_slow": 1.0,
}  # fmt: skip
_LITE = {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}
_GROUPS = {"n_routed_experts": 12, "n_group": 4, "topk_group": 2}

CASES = (
    Family("deepseek-v2-lite", "DeepseekV2", {**SIZES, "q_lora_rank": None, "topk_method": "greedy"}, seed=8,
        contract=True),
    Family("deepseek-v2", "DeepseekV2", {**SIZES, **_GROUPS, "topk_method": "group_limited_greedy",
        "routed_scaling_factor": 4.0, "rope_parameters": _LITE}, dtype="BF16"),
    Family("deepseek-v3-bf16", "DeepseekV3", {**SIZES, **_GROUPS, "qk_rope_head_dim": 8, "qk_nope_head_dim": 40,
        "v_head_dim": 40, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}}, dtype="BF16"),
    Family("deepseek-v3-plain", "DeepseekV3", {**SIZES, "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
        "rope_parameters": YARN}, contract=True),
    Family("glm-4.7-flash", "Glm4MoeLite", {**SIZES, "first_k_dense_replace": None, "rms_norm_eps": 1e-5,
        "mlp_layer_types": ["dense", "sparse", "sparse"], "routed_scaling_factor": 1.8}),
    Family("glm-4.7-flash-bf16", "Glm4MoeLite", {**SIZES, "first_k_dense_replace": None, "rms_norm_eps": 1e-5,
        "mlp_layer_types": ["dense", "sparse", "sparse"], "n_shared_experts": 1}, dtype="BF16"),
)  # fmt: skip
