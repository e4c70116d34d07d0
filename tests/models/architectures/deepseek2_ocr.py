"""DeepSeek-OCR, as transformers' Unlimited-OCR without its window; the contract tests run its text part."""

from __future__ import annotations

from tests.models.families import Family

_TEXT = {
    "hidden_size": 128, "head_dim": None, "num_key_value_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 3,
    "moe_intermediate_size": 32, "mlp_layer_types": ["dense", "sparse", "sparse"],
    "layer_types": ["full_attention"] * 3,
}  # fmt: skip
_VISION = {
    "sam_config": {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 64, "patch_size": 4,
        "window_size": 3, "global_attn_indexes": [1], "mlp_dim": 64, "output_channels": 16,
        "downsample_channels": [24, 32],
    },
    "encoder_config": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16,
        "patch_size": 4,
    },
}  # fmt: skip
_OUTER = {"image_token_id": 5, "tie_word_embeddings": False}

CASES = (
    Family("deepseek2-ocr", "UnlimitedOcr", _TEXT, vision=_VISION, outer=_OUTER, contract=True),
    Family("deepseek2-ocr-bf16", "UnlimitedOcr", _TEXT, vision=_VISION, outer=_OUTER, dtype="BF16"),
)
