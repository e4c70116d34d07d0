"""LLaVA 1.5, whose pictures are one square, and 1.6, whose pictures are a square and tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from tests.models.vision.harness import N_CTX, N_TEXT, Case, Token
from tests.models.vision.pictures import Picture

SIDE, PATCH = 28, 7
TOKENS = (Token("<image>", "image_token"),)
SIZES = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
RESOLUTIONS = [[SIDE, 2 * SIDE], [2 * SIDE, SIDE], [2 * SIDE, 2 * SIDE], [3 * SIDE, SIDE], [SIDE, 3 * SIDE]]


@dataclass(frozen=True, kw_only=True)
class LlavaCase(Case):
    def processor(self, tokenizer: Any) -> Any:
        from transformers import LlavaProcessor  # noqa: PLC0415
        from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil  # noqa: PLC0415
        from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil  # noqa: PLC0415

        settings = self.files["preprocessor_config.json"]
        made = (LlavaImageProcessorPil if settings.get("do_pad") else CLIPImageProcessorPil)(**settings)
        return LlavaProcessor(made, tokenizer, patch_size=PATCH, vision_feature_select_strategy=self.strategy,
                              num_additional_image_tokens=1)  # fmt: skip

    def arrays(self, inputs: Any) -> Mapping[str, NDArray[Any]]:
        pixels = inputs["pixel_values"].numpy().reshape(-1, 3, SIDE // PATCH, PATCH, SIDE // PATCH, PATCH)
        return {"patches": pixels.transpose(0, 2, 4, 1, 3, 5).reshape(len(pixels), -1, 3 * PATCH**2)}

    @property
    def strategy(self) -> str:
        """Whether the class token's row is left out ("default")."""
        return str(self.config.get("vision_feature_select_strategy", "default"))


@dataclass(frozen=True, kw_only=True)
class NextCase(LlavaCase):
    def processor(self, tokenizer: Any) -> Any:
        from transformers import LlavaNextProcessor  # noqa: PLC0415
        from transformers.models.llava_next.image_processing_pil_llava_next import (  # noqa: PLC0415
            LlavaNextImageProcessorPil,
        )

        made = LlavaNextImageProcessorPil(**self.files["preprocessor_config.json"])
        return LlavaNextProcessor(made, tokenizer, patch_size=PATCH, vision_feature_select_strategy="default",
                                  num_additional_image_tokens=1)  # fmt: skip

    def features(self, model: Any, inputs: Any) -> list[Any]:
        found = model.get_image_features(inputs["pixel_values"], inputs["image_sizes"]).pooler_output
        return [rows.float().numpy() for rows in found]


_TEXT = {
    "model_type": "llama", "vocab_size": N_TEXT + len(TOKENS), "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": N_CTX,
    "pad_token_id": 0, "bos_token_id": 317, "eos_token_id": 318,
}  # fmt: skip
_VISION = {
    "model_type": "clip_vision_model", "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 72, "image_size": SIDE, "patch_size": PATCH,
}  # fmt: skip
_CONFIG = {"text_config": _TEXT, "vision_config": _VISION, "image_token_index": N_TEXT, "image_seq_length": 16}

CASES = (
    LlavaCase(
        name="llava",
        model="LlavaForConditionalGeneration",
        config=_CONFIG,
        placeholder="<image>",
        tokens=TOKENS,
        seed=8,
        files={"preprocessor_config.json": SIZES},
    ),
    LlavaCase(
        name="llava-padded-layers",
        model="LlavaForConditionalGeneration",
        config={
            **_CONFIG, "vision_feature_layer": [-2, 1], "vision_feature_select_strategy": "full",
            "vision_config": {**_VISION, "hidden_act": "gelu"},
        },
        placeholder="<image>",
        tokens=TOKENS,
        files={"preprocessor_config.json": {**SIZES, "do_pad": True}},
    ),
    NextCase(
        name="llava-next",
        model="LlavaNextForConditionalGeneration",
        config={**_CONFIG, "image_grid_pinpoints": RESOLUTIONS},
        placeholder="<image>",
        tokens=TOKENS,
        seed=2,
        files={"preprocessor_config.json": {**SIZES, "image_grid_pinpoints": RESOLUTIONS}},
        prompts={
            "one": ("Look: ", Picture(100, 60), " what is it?"),
            "two": (Picture(31, 97, 1), "and\n", Picture(400, 9, 2), "\n\nare they alike?"),
            "three": ("a", Picture(64, 64, 3), "b", Picture(5, 3, 4), Picture(90, 200, 5), "c"),
        },
    ),
)  # fmt: skip
