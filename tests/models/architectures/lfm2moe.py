"""LFM2 with experts: short convolutions, attention in some blocks, experts in all but the first."""

from __future__ import annotations

from tests.models.families import EXPERTS, Family

_SETTINGS = {
    **EXPERTS, "num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "full_attention"],
    "num_dense_layers": 1, "head_dim": None, "hidden_size": 128,
}  # fmt: skip

CASES = (
    Family("lfm2moe", "Lfm2Moe", _SETTINGS, seed=3, contract=True),
    Family("lfm2moe-bf16", "Lfm2Moe", {**_SETTINGS, "num_dense_layers": 2, "routed_scaling_factor": 2.5,
        "tie_word_embeddings": False}, dtype="BF16"),
)  # fmt: skip
