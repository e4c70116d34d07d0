"""Idefics 3, whose pictures are tiles and a whole, and SmolVLM, here with pictures that are not split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.models.vision.harness import N_TEXT, PROMPTS, Token
from tests.models.vision.pictures import Picture
from tests.models.vision.tiles import MERGE, N_TOKENS, PATCH, SIDE, TEXT, VISION, TiledCase

TILES = 3
TOKENS = (
    Token("<fake_token_around_image>", "fake_image_token"),
    Token("<image>", "image_token"),
    Token("<global-img>", "global_image_token"),
    Token("<end_of_utterance>", "end_of_utterance_token"),
    *(Token(f"<row_{row + 1}_col_{column + 1}>") for row in range(TILES) for column in range(TILES)),
    *(Token("\n" * n, special=False) for n in range(1, 3)),
)
IMAGE, GLOBAL = N_TEXT + 1, N_TEXT + 2


@dataclass(frozen=True, kw_only=True)
class Idefics3Case(TiledCase):
    def processor(self, tokenizer: Any) -> Any:
        from transformers import Idefics3Processor  # noqa: PLC0415
        from transformers.models.idefics3.image_processing_pil_idefics3 import (  # noqa: PLC0415
            Idefics3ImageProcessorPil,
        )

        images = Idefics3ImageProcessorPil(**self.files["preprocessor_config.json"])
        return Idefics3Processor(images, tokenizer, image_seq_len=N_TOKENS)

    def features(self, model: Any, inputs: Any) -> list[NDArray[np.float32]]:
        tiles = model.get_image_features(inputs["pixel_values"], inputs["pixel_attention_mask"]).pooler_output
        return self.by_picture(tiles, inputs)


_CONFIG = {
    "text_config": {**TEXT, "model_type": "llama", "vocab_size": N_TEXT + len(TOKENS)},
    "vision_config": {**VISION, "image_size": SIDE, "patch_size": PATCH}, "image_token_id": IMAGE,
    "scale_factor": MERGE,
}  # fmt: skip
_PROCESSOR = {"size": {"longest_edge": TILES * SIDE}, "max_image_size": {"longest_edge": SIDE}}


def _case(name: str, stem: str, *, seed: int, **processor: Any) -> Idefics3Case:
    return Idefics3Case(
        name=name, model=f"{stem}ForConditionalGeneration", config=_CONFIG, placeholder="<image>", tokens=TOKENS,
        seed=seed, files={"preprocessor_config.json": {**_PROCESSOR, **processor}}, mark=GLOBAL, behind=N_TOKENS,
        image=IMAGE,
        prompts={**PROMPTS, "three": ("a", Picture(64, 64, 3), "b", Picture(5, 3, 4), Picture(300, 20, 5), "c")},
    )  # fmt: skip


CASES = (
    _case("idefics3", "Idefics3", seed=6),
    _case("smolvlm", "SmolVLM", seed=14, do_image_splitting=False),
)
