"""Llama 3.2 Vision; the contract tests run its text part."""

from __future__ import annotations

from tests.models.families import LLAMA3, VISION, Family

_TEXT = {"head_dim": None, "cross_attention_layers": [1], "rope_parameters": LLAMA3}
_PLAIN = {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
          "num_attention_heads": 2, "num_key_value_heads": 1}  # fmt: skip
_VISION = {
    **{name: value for name, value in VISION.items() if name != "num_attention_heads"},
    "num_global_layers": 2, "attention_heads": 4, "vision_output_dim": 96, "intermediate_layers_indices": [0, 1],
}  # fmt: skip

_OUTER = {"image_token_index": 320}  # the first row of the embedding that is no logit

CASES = (
    Family("mllama", "Mllama", _TEXT, vision=_VISION, outer=_OUTER),
    # Without factors of the rotation everything that the file has is needed; heads of 32, as quantized caches want.
    Family("mllama-plain", "Mllama", {**_TEXT, **_PLAIN}, vision=_VISION, outer=_OUTER, seed=2, contract=True),
    Family("mllama-bf16", "Mllama", _TEXT, vision=_VISION, outer=_OUTER, dtype="BF16"),
)
