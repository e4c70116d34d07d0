"""InternVL 3 over the text model of Qwen2.5, and 3.5 over that of Qwen3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.models.vision.harness import N_CTX, N_TEXT, Case, Token
from tests.models.vision.pictures import Picture

SIDE, PATCH, MERGE = 28, 7, 2
N_TOKENS = (SIDE // PATCH // MERGE) ** 2
TOKENS = (
    Token("<img>", "start_image_token"),
    Token("</img>", "end_image_token"),
    Token("<IMG_CONTEXT>", "context_image_token"),
    Token("<video>", "video_token"),
)
BEGIN, END, IMAGE = range(N_TEXT, N_TEXT + 3)


@dataclass(frozen=True, kw_only=True)
class InternVLCase(Case):
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

    def arrays(self, inputs: Any) -> Mapping[str, NDArray[Any]]:
        pixels = inputs["pixel_values"].numpy().reshape(-1, 3, SIDE // PATCH, PATCH, SIDE // PATCH, PATCH)
        return {"tiles": pixels.transpose(0, 2, 4, 1, 3, 5).reshape(len(pixels), -1, 3 * PATCH**2)}

    def features(self, model: Any, inputs: Any) -> list[NDArray[np.float32]]:
        rows = model.get_image_features(inputs["pixel_values"]).pooler_output.float().numpy()
        ids = inputs["input_ids"][0].numpy()
        ends = [int((ids[:place] == IMAGE).sum()) for place in np.flatnonzero(ids == END)]
        return np.split(rows.reshape(-1, rows.shape[-1]), ends[:-1])


_TEXT = {
    "vocab_size": N_TEXT + len(TOKENS), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": N_CTX, "pad_token_id": 0,
    "bos_token_id": 317, "eos_token_id": 318,
}  # fmt: skip
_VISION = {
    "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 72,
    "image_size": [SIDE, SIDE], "patch_size": [PATCH, PATCH], "attention_bias": True,
}  # fmt: skip
_PROCESSOR = {
    "size": {"height": SIDE, "width": SIDE}, "max_patches": 6, "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}  # fmt: skip


def _case(name: str, text: Mapping[str, Any], **options: Any) -> InternVLCase:
    return InternVLCase(
        name=name, model="InternVLForConditionalGeneration",
        config={"text_config": {**_TEXT, **text}, "vision_config": _VISION, "image_token_id": IMAGE,
                "tie_word_embeddings": False},
        placeholder="<IMG_CONTEXT>", tokens=TOKENS, files={"preprocessor_config.json": _PROCESSOR},
        prompts={
            "one": ("Look: ", Picture(100, 60), " what is it?"),
            "two": (Picture(31, 97, 1), "and\n", Picture(97, 31, 2), "\n\nare they alike?"),
            "three": ("a", Picture(64, 64, 3), "b", Picture(5, 3, 4), Picture(300, 200, 5), "c"),
        },
        **options,
    )  # fmt: skip


CASES = (
    _case("internvl", {"model_type": "qwen2"}, seed=13),
    _case("internvl-3.5", {"model_type": "qwen3", "head_dim": 32}, seed=9, embeddings=1.0),
)
