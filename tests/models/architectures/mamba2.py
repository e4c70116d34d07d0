"""Mamba-2: state-space layers only."""

from __future__ import annotations

from tests.models.families import Family

_SETTINGS = {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "chunk_size": 16}

CASES = (
    Family("mamba2", "Mamba2", {**_SETTINGS, "use_conv_bias": False}, contract=True),
    Family("mamba2-bf16", "Mamba2", {**_SETTINGS, "conv_kernel": 3, "use_bias": True, "n_groups": 1,
        "tie_word_embeddings": True}, dtype="BF16"),
)  # fmt: skip
