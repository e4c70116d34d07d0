"""OLMo Hybrid: delta nets whose states can turn over, and OLMo 3's attention."""

from __future__ import annotations

from tests.models.families import Family

_SETTINGS = {
    "num_hidden_layers": 4, "layer_types": [*["linear_attention"] * 2, "full_attention", "linear_attention"],
    "head_dim": None, "linear_num_key_heads": 3, "linear_num_value_heads": 3, "linear_key_head_dim": 32,
    "linear_value_head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": None},
}  # fmt: skip

_WIDE = {f"{part}_conv1d.weight": [size, 1, 4] for part, size in (("q", 96), ("k", 96), ("v", 192))}
"""Transformers saves equal parts of them."""

CASES = (
    Family("olmo-hybrid", "OlmoHybrid", {**_SETTINGS, "linear_key_head_dim": None, "linear_value_head_dim": None,
        "hidden_size": 128}, shapes=_WIDE, contract=True),
    Family("olmo-hybrid-bf16", "OlmoHybrid", {**_SETTINGS, "linear_allow_neg_eigval": False,
        "layer_types": ["full_attention", *["linear_attention"] * 3], "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}, dtype="BF16"),
)  # fmt: skip
