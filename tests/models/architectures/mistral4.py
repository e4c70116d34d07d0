"""Mistral Small 4: latent attention that grows sharper, experts that a softmax chooses."""

from __future__ import annotations

from tests.models.architectures.deepseek2 import SIZES, YARN
from tests.models.families import Family

_ROPE = {**YARN, "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
_SETTINGS = {**SIZES, "first_k_dense_replace": 0, "rope_parameters": _ROPE}

CASES = (
    Family("mistral4", "Mistral4", _SETTINGS, contract=True),
    Family("mistral4-groups-bf16", "Mistral4", {**_SETTINGS, "n_routed_experts": 12, "n_group": 4, "topk_group": 2,
        "n_shared_experts": 1, "qk_rope_head_dim": 24}, dtype="BF16"),
)  # fmt: skip
