"""Gemma 3n as text."""

from __future__ import annotations

from tests.models.families import Family

_SETTINGS = {
    "num_hidden_layers": 6, "layer_types": ["sliding_attention", "full_attention"] * 3, "sliding_window": 24,
    "hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": 313, "num_kv_shared_layers": 3, "laurel_rank": 7,
    "altup_num_inputs": 3, "activation_sparsity_pattern": [0.8, 0.6, 0.0, 0.7, 0.0, 0.0],
}  # fmt: skip

CASES = (
    Family("gemma3n", "Gemma3n", _SETTINGS, embeddings=0.03, queries=0.2, contract=True),
    Family("gemma3n-active-bf16", "Gemma3n", {**_SETTINGS, "altup_num_inputs": 4, "altup_active_idx": 1},
           embeddings=0.03, queries=0.2, dtype="BF16"),
)  # fmt: skip
