"""Mistral 3 with Pixtral's tower. Rows of an image end with a token each."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from tests.models.vision.harness import N_CTX, N_TEXT, Case, Token

TOKENS = (Token("[IMG]", "image_token"), Token("[IMG_BREAK]", "image_break_token"), Token("[IMG_END]", "image_end_token"))
PATCH, MERGE = 4, 2


@dataclass(frozen=True, kw_only=True)
class Mistral3Case(Case):
    def processor(self, tokenizer: Any) -> Any:
        from transformers.models.pixtral import image_processing_pil_pixtral as slow  # noqa: PLC0415

        # The processor takes one function from the module that needs torchvision; the slow one has the same.
        sys.modules.setdefault("transformers.models.pixtral.image_processing_pixtral", slow)
        from transformers.models.pixtral.processing_pixtral import PixtralProcessor  # noqa: PLC0415

        patch, merge = self.config["vision_config"]["patch_size"], self.config["spatial_merge_size"]
        images = slow.PixtralImageProcessorPil(**self.files["preprocessor_config.json"])
        return PixtralProcessor(images, tokenizer, patch_size=patch, spatial_merge_size=merge)

    def features(self, model: Any, inputs: Any) -> list[Any]:
        found = model.get_image_features(inputs["pixel_values"], inputs["image_sizes"]).pooler_output
        return [rows.float().numpy() for rows in found]


CASES = (
    Mistral3Case(
        name="mistral3",
        model="Mistral3ForConditionalGeneration",
        config={
            "text_config": {
                "model_type": "mistral", "vocab_size": N_TEXT + len(TOKENS), "hidden_size": 64, "intermediate_size": 96,
                "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
                "max_position_embeddings": N_CTX, "sliding_window": None, "tie_word_embeddings": False,
                "bos_token_id": 317, "eos_token_id": 318,
            },
            "vision_config": {
                "model_type": "pixtral", "num_hidden_layers": 3, "hidden_size": 48, "num_attention_heads": 3,
                "intermediate_size": 72, "patch_size": PATCH, "image_size": 56, "hidden_act": "silu",
            },
            "image_token_index": N_TEXT, "spatial_merge_size": MERGE, "tie_word_embeddings": False,
        },
        files={"preprocessor_config.json": {"size": {"longest_edge": 56}, "patch_size": {"height": PATCH, "width": PATCH}}},
        placeholder="[IMG]",
        tokens=TOKENS,
        seed=7,
        embeddings=1.0,
    ),
)  # fmt: skip
