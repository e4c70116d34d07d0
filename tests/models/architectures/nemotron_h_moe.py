"""Nemotron 3: experts in place of feed-forward layers, with a latent vector or without."""

from __future__ import annotations

from tests.models.architectures.nemotron_h import MAMBA
from tests.models.families import Family

_SETTINGS = {
    **MAMBA, "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"], "n_routed_experts": 8,
    "num_experts_per_tok": 3, "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 48,
}  # fmt: skip

CASES = (
    Family("nemotron_h_moe", "NemotronH", {**_SETTINGS, "use_conv_bias": False}, contract=True),
    Family("nemotron_h_moe-latent-bf16", "NemotronH", {**_SETTINGS, "moe_latent_size": 32,
        "routed_scaling_factor": 2.5}, dtype="BF16"),
)  # fmt: skip
