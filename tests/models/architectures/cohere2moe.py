"""Command with experts: sigmoids or a softmax, means subtracted or not."""

from __future__ import annotations

from tests.models.families import Family

_SETTINGS = {
    "num_experts": 8, "num_experts_per_tok": 3, "num_shared_experts": 2, "prefix_dense_intermediate_size": 80,
    "mlp_layer_types": ["dense", "sparse", "sparse"], "sliding_window": 24,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"], "expert_selection_fn": "sigmoid",
}  # fmt: skip

CASES = (
    Family("cohere2moe", "Cohere2Moe", _SETTINGS, contract=True),
    Family(
        "cohere2moe-bf16",
        "Cohere2Moe",
        {**_SETTINGS, "expert_selection_fn": "softmax", "rms_norm_eps": 1e-5, "num_shared_experts": 0},
        dtype="BF16",
    ),
)
