"""LFM2: short convolutions, with attention in some blocks."""

from __future__ import annotations

from tests.models.families import Family

_SETTINGS = {
    "num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "conv"],
    "block_auto_adjust_ff_dim": False, "head_dim": None, "hidden_size": 128,
}  # fmt: skip

CASES = (
    Family("lfm2", "Lfm2", _SETTINGS, contract=True),
    Family("lfm2-taps-4-bf16", "Lfm2", {**_SETTINGS, "conv_L_cache": 4, "block_auto_adjust_ff_dim": True,
        "block_multiple_of": 32, "tie_word_embeddings": False}, dtype="BF16"),
)  # fmt: skip
