"""GLM-4.5: a block without experts; queries normalized, or not."""

from __future__ import annotations

from tests.models.families import Family

_SETTINGS = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "num_mtp_layers": 0,
}  # fmt: skip

CASES = (
    Family("glm4moe", "Glm4Moe", _SETTINGS, seed=4, contract=True),
    Family(
        "glm4moe-bf16",
        "Glm4Moe",
        {**_SETTINGS, "use_qk_norm": True, "attention_bias": True, "routed_scaling_factor": 2.5},
        dtype="BF16",
    ),
)
