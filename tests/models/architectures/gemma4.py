"""Gemma 4: dense, with embeddings for each layer and shared keys and values, and with experts."""

from __future__ import annotations

from tests.models.families import Family

_DENSE = {
    "num_hidden_layers": 4, "sliding_window": 24, "final_logit_softcapping": 30.0, "global_head_dim": 64,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "hidden_size_per_layer_input": 0,
}  # fmt: skip
_KEYS_AS_VALUES = {**_DENSE, "attention_k_eq_v": True, "num_global_key_value_heads": 1}
_SMALL = {
    **_DENSE, "num_hidden_layers": 6, "layer_types": ["sliding_attention", "full_attention"] * 3,
    "global_head_dim": 48, "hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": 320,
    "num_kv_shared_layers": 3, "use_double_wide_mlp": True,
}  # fmt: skip
_EXPERTS = {
    **_KEYS_AS_VALUES, "enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 40,
}  # fmt: skip

CASES = (
    Family("gemma4", "Gemma4", _KEYS_AS_VALUES, contract=True),
    Family("gemma4-small", "Gemma4", _SMALL, contract=True),
    Family("gemma4-experts", "Gemma4", _EXPERTS, contract=True),
    Family("gemma4-small-bf16", "Gemma4", _SMALL, dtype="BF16"),
)
