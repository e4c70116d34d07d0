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
_UNIFIED = {name: value for name, value in _KEYS_AS_VALUES.items() if name != "hidden_size_per_layer_input"}
_VISION = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8,
    "intermediate_size": 48, "patch_size": 4, "position_embedding_size": 1024, "standardize": True,
}  # fmt: skip

CASES = (
    Family("gemma4", "Gemma4", _KEYS_AS_VALUES, embeddings=0.03, queries=0.2, contract=True),
    Family("gemma4-small", "Gemma4", _SMALL, embeddings=0.03, queries=0.2, contract=True),
    Family("gemma4-experts", "Gemma4", _EXPERTS, embeddings=0.03, queries=0.2, contract=True),
    Family("gemma4-vision-bf16", "Gemma4", {**_KEYS_AS_VALUES, "pad_token_id": 0}, embeddings=0.03, queries=0.2,
           dtype="BF16", vision=_VISION,
           outer={"audio_config": None, "boi_token_id": 314, "eoi_token_id": 315, "image_token_id": 316}),
    Family("gemma4-unified", "Gemma4Unified", _UNIFIED, embeddings=0.03, queries=0.2),
    Family("gemma4-unified-bf16", "Gemma4Unified", _UNIFIED, embeddings=0.03, queries=0.2, dtype="BF16"),
    Family("gemma4-small-bf16", "Gemma4", _SMALL, embeddings=0.03, queries=0.2, dtype="BF16"),
)  # fmt: skip
