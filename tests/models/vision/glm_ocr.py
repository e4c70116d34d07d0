"""GLM-OCR. Pictures smaller than a block are enlarged, and pixels count twice beside the limits."""

from __future__ import annotations

from dataclasses import dataclass

from tests.models.vision.harness import N_CTX, N_TEXT, Token
from tests.models.vision.pictures import Picture
from tests.models.vision.qwen3vl import WHOLE
from tests.models.vision.qwen25vl import BLOCK, MERGE, PATCH, SMALL, QwenCase

TOKENS = (
    Token("<|begin_of_image|>"),
    Token("<|end_of_image|>"),
    Token("<|image|>", "image_token"),
    Token("<|video|>", "video_token"),
)


@dataclass(frozen=True, kw_only=True)
class GlmOcrCase(QwenCase):
    window: int = WHOLE
    processor_class: str | None = "Glm46VProcessor"
    image_processor_class: str = "glm46v.image_processing_pil_glm46v.Glm46VImageProcessorPil"


_TEXT = {
    "vocab_size": N_TEXT + len(TOKENS), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": N_CTX,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 5, 7],
                        "partial_rotary_factor": 1.0},
    "bos_token_id": 317, "eos_token_id": 318, "pad_token_id": 0,
}  # fmt: skip
_VISION = {
    "depth": 3, "hidden_size": 48, "intermediate_size": 72, "num_heads": 3, "patch_size": PATCH, "out_hidden_size": 64,
    "spatial_merge_size": MERGE, "temporal_patch_size": 2,
}  # fmt: skip

CASES = (
    GlmOcrCase(
        name="glm-ocr",
        model="GlmOcrForConditionalGeneration",
        config={
            "text_config": _TEXT, "vision_config": _VISION, "image_start_token_id": N_TEXT,
            "image_end_token_id": N_TEXT + 1, "image_token_id": N_TEXT + 2, "video_token_id": N_TEXT + 3,
            "tie_word_embeddings": False,
        },
        files={"preprocessor_config.json": {"size": {"shortest_edge": 8 * BLOCK**2, "longest_edge": 96 * BLOCK**2}}},
        placeholder="<|begin_of_image|><|image|><|end_of_image|>",
        tokens=TOKENS,
        pictures=(*SMALL, Picture(45, 2)),
        seed=2,
        embeddings=1.0,
    ),
)  # fmt: skip
