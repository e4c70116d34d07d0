"""GLM-4 of 2025, with biases and without, and GLM-OCR, of whose heads three quarters rotate in one case."""

from __future__ import annotations

from tests.models.families import LLAMA3, Family

_VISION = {"depth": 2, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2, "patch_size": 14,
           "out_hidden_size": 64}  # fmt: skip
_OUTER = {"image_start_token_id": 12, "image_end_token_id": 13, "image_token_id": 14, "tie_word_embeddings": False}
_AXES = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]}
_PART = {**_AXES, "mrope_section": [4, 4, 4], "partial_rotary_factor": 0.75}

CASES = (
    Family("glm4", "Glm4", {"attention_bias": False}, contract=True),
    Family("glm4-llama3", "Glm4", {"rope_parameters": {**LLAMA3, "partial_rotary_factor": 0.5}}),
    Family("glm4-bf16", "Glm4", {}, dtype="BF16"),
    Family("glm-ocr", "GlmOcr", {"rope_parameters": _AXES}, vision=_VISION, outer=_OUTER),
    Family("glm-ocr-bf16", "GlmOcr", {"rope_parameters": _PART}, vision=_VISION, outer=_OUTER, dtype="BF16"),
)
