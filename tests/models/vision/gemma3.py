"""Gemma 3 that reads images. Newlines around an image join those of the text, as the vocabulary has runs of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from tests.models.families import SHORT_PERIOD
from tests.models.vision.harness import N_CTX, N_TEXT, Case, Token

IMAGE_SIZE, PATCH_SIZE, N_SOFT = 84, 14, 9

TOKENS = (
    Token("<start_of_image>", "boi_token"),
    Token("<end_of_image>", "eoi_token"),
    Token("<image_soft_token>", "image_token"),
    *(Token("\n" * n, special=False) for n in range(1, 4)),
)


@dataclass(frozen=True, kw_only=True)
class Gemma3Case(Case):
    def processor(self, tokenizer: Any) -> Any:
        from transformers import Gemma3Processor  # noqa: PLC0415
        from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil  # noqa: PLC0415

        side = self.config["vision_config"]["image_size"]
        images = Gemma3ImageProcessorPil(
            size={"height": side, "width": side}, image_mean=[0.5] * 3, image_std=[0.5] * 3, do_pan_and_scan=False
        )
        return Gemma3Processor(images, tokenizer, image_seq_length=self.config["mm_tokens_per_image"])

    def arrays(self, inputs: Any) -> Mapping[str, NDArray[Any]]:
        import torch  # noqa: PLC0415

        size = self.config["vision_config"]["patch_size"]
        unfolded = torch.nn.functional.unfold(inputs["pixel_values"], size, stride=size)
        return {"patches": unfolded[0].T.numpy()}


_TEXT = {
    "vocab_size": N_TEXT + len(TOKENS), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": N_CTX,
    "sliding_window": 24, "query_pre_attn_scalar": 40, "pad_token_id": 0, "bos_token_id": 317, "eos_token_id": 318,
    **SHORT_PERIOD,
}  # fmt: skip
_VISION = {
    "model_type": "siglip_vision_model", "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 72, "image_size": IMAGE_SIZE, "patch_size": PATCH_SIZE, "vision_use_head": False,
}  # fmt: skip

CASES = (
    Gemma3Case(
        name="gemma3",
        model="Gemma3ForConditionalGeneration",
        config={
            "text_config": _TEXT, "vision_config": _VISION, "mm_tokens_per_image": N_SOFT,
            "boi_token_index": N_TEXT, "eoi_token_index": N_TEXT + 1, "image_token_index": N_TEXT + 2,
        },
        placeholder="<start_of_image>",
        tokens=TOKENS,
        norms=0.0,
        seed=3,
        embeddings=0.03,
    ),
)  # fmt: skip
