"""LFM2: short convolutions, with attention in some blocks."""

from __future__ import annotations

from tests.models.families import Family

_SETTINGS = {
    "num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "conv"],
    "block_auto_adjust_ff_dim": False, "head_dim": None, "hidden_size": 128,
}  # fmt: skip

_VISION = {
    "model_type": "siglip2_vision_model", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 48, "num_patches": 16, "patch_size": 14, "vision_use_head": False,
}  # fmt: skip
_OUTER = {"image_token_id": 5, "projector_hidden_size": 48}

CASES = (
    Family("lfm2", "Lfm2", _SETTINGS, contract=True),
    Family("lfm2-taps-4-bf16", "Lfm2", {**_SETTINGS, "conv_L_cache": 4, "block_auto_adjust_ff_dim": True,
        "block_multiple_of": 32, "tie_word_embeddings": False}, dtype="BF16"),
    Family("lfm2-vision", "Lfm2Vl", {**_SETTINGS, "model_type": "lfm2"}, vision=_VISION, outer=_OUTER),
    Family("lfm2-vision-bf16", "Lfm2Vl", {**_SETTINGS, "model_type": "lfm2"}, vision=_VISION, outer=_OUTER,
        dtype="BF16"),
)  # fmt: skip
