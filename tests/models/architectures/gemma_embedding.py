"""EmbeddingGemma; local layers see half a window on either side."""

from __future__ import annotations

from tests.models.encoders import Case

_SETTINGS = {
    "num_key_value_heads": 2, "head_dim": 32, "query_pre_attn_scalar": 40, "sliding_window": 24,
    "use_bidirectional_attention": True,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
}  # fmt: skip

CASES = (
    Case("gemma-embedding", "Gemma3Text", _SETTINGS, norms=0.0),
    Case("gemma-embedding-dense", "Gemma3Text", _SETTINGS, norms=0.0, n_dense=80),
    Case("gemma-embedding-bf16", "Gemma3Text", {**_SETTINGS, "num_key_value_heads": 4}, norms=0.0, dtype="BF16"),
)
