"""InternVL 3 over the text model of Qwen2.5, and 3.5 over that of Qwen3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.models.vision.harness import N_TEXT, Token
from tests.models.vision.tiles import N_TOKENS, PATCH, SIDE, TEXT, VISION, TiledCase

TOKENS = (
    Token("<img>", "start_image_token"),
    Token("</img>", "end_image_token"),
    Token("<IMG_CONTEXT>", "context_image_token"),
    Token("<video>", "video_token"),
)
END, IMAGE = N_TEXT + 1, N_TEXT + 2


@dataclass(frozen=True, kw_only=True)
class InternVLCase(TiledCase):
    def weight(self, name: str, shape: Any) -> NDArray[np.float32]:
        """Layer scales of random sizes are near 0, and would hide what they scale."""
        return super().weight(name, shape) + np.float32(".lambda_" in name)

    def processor(self, tokenizer: Any) -> Any:
        from transformers import InternVLProcessor  # noqa: PLC0415
        from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil  # noqa: PLC0415

        class WithoutVideo(InternVLProcessor):  # type: ignore[misc]
            def check_argument_for_proper_class(self, name: str, argument: Any) -> Any:
                """A processor of videos needs torchvision, and there are no videos."""
                if name == "video_processor":
                    return argument
                return super().check_argument_for_proper_class(name, argument)

        images = GotOcr2ImageProcessorPil(**self.files["preprocessor_config.json"])
        return WithoutVideo(images, tokenizer, None, image_seq_length=N_TOKENS)

    def features(self, model: Any, inputs: Any) -> list[NDArray[np.float32]]:
        return self.by_picture(model.get_image_features(inputs["pixel_values"]).pooler_output, inputs)


_VISION = {**VISION, "image_size": [SIDE, SIDE], "patch_size": [PATCH, PATCH], "attention_bias": True}
_PROCESSOR = {
    "size": {"height": SIDE, "width": SIDE}, "max_patches": 6, "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}  # fmt: skip


def _case(name: str, text: Mapping[str, Any], **options: Any) -> InternVLCase:
    return InternVLCase(
        name=name, model="InternVLForConditionalGeneration",
        config={"text_config": {**TEXT, "vocab_size": N_TEXT + len(TOKENS), **text}, "vision_config": _VISION,
                "image_token_id": IMAGE, "tie_word_embeddings": False},
        placeholder="<IMG_CONTEXT>", tokens=TOKENS, files={"preprocessor_config.json": _PROCESSOR}, mark=END,
        **options,
    )  # fmt: skip


CASES = (
    _case("internvl", {"model_type": "qwen2"}, seed=13),
    _case("internvl-3.5", {"model_type": "qwen3", "head_dim": 32}, seed=9, embeddings=1.0),
)
