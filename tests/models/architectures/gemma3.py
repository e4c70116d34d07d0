"""Gemma 3, alone and with the part that reads images."""

from __future__ import annotations

from tests.models.families import LLAMA3, SHORT_PERIOD, VISION, Family

_TEXT = {"sliding_window": 24, "query_pre_attn_scalar": 40, **SHORT_PERIOD}
_STRETCHED = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 50000.0, "factor": 8.0},
}
_GLOBAL_LLAMA3 = {**_STRETCHED, "full_attention": LLAMA3}
_VISION = {**VISION, "model_type": "siglip_vision_model"}

CASES = (
    Family("gemma3", "Gemma3", _TEXT, norms=0.0, seed=2, contract=True),
    Family("gemma3-llama3", "Gemma3", {**_TEXT, "rope_parameters": _GLOBAL_LLAMA3}, norms=0.0),
    Family("gemma3-stretched-bf16", "Gemma3", {**_TEXT, "rope_parameters": _STRETCHED}, norms=0.0, dtype="BF16"),
    Family("gemma3-vision-bf16", "Gemma3", _TEXT, norms=0.0, dtype="BF16", vision=_VISION,
           outer={"mm_tokens_per_image": 4, "boi_token_index": 314, "eoi_token_index": 315,
                  "image_token_index": 316}),
)  # fmt: skip
