"""LFM2-VL. Tiles are small, so that pictures are one or several of them.

The published processor resizes with torchvision, whose weights have 15 bits. Here Pillow resizes for it, as for the
engine, so that pixels are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.models.vision.harness import N_TEXT, PICTURES, PROMPTS, Token
from tests.models.vision.pictures import Picture
from tests.models.vision.published_processor import LFM2_VL, image_processor
from tests.models.vision.tiles import TEXT, VISION, TiledCase

PATCH, MERGE, TILE, MOST_TILES = 4, 2, 24, 6
TOKENS = (
    Token("<|image_start|>", "image_start_token"),
    Token("<|image_end|>", "image_end_token"),
    Token("<image>", "image_token"),
    Token("<|img_thumbnail|>", "image_thumbnail_token"),
    *(Token(f"<|img_row_{row + 1}_col_{column + 1}|>") for row in range(MOST_TILES) for column in range(MOST_TILES)),
)
END, IMAGE = N_TEXT + 1, N_TEXT + 2


@dataclass(frozen=True, kw_only=True)
class Lfm2Case(TiledCase):
    def processor(self, tokenizer: Any) -> Any:
        from transformers import Lfm2VlProcessor  # noqa: PLC0415

        class WithBeginning(Lfm2VlProcessor):  # type: ignore[misc]
            """The template writes the first token of a prompt, and here is none."""

            text_kwargs = {"add_special_tokens": True}  # noqa: RUF012

        images = image_processor(LFM2_VL, pillow=True, **self.files["preprocessor_config.json"])
        return WithBeginning(images, tokenizer)

    def arrays(self, inputs: Any) -> Mapping[str, NDArray[Any]]:
        """The processor's patches have colours last, and zeros behind them where there are fewer than in others."""
        shapes = inputs["spatial_shapes"].tolist()
        pixels = [
            rows[: shape[0] * shape[1]].numpy().reshape(-1, PATCH**2, 3).transpose(0, 2, 1).reshape(-1, 3 * PATCH**2)
            for rows, shape in zip(inputs["pixel_values"], shapes, strict=True)
        ]
        return {"whole": pixels[-1][None], **({"tiles": np.stack(pixels[:-1])} if len(pixels) > 1 else {})}

    def features(self, model: Any, inputs: Any) -> list[NDArray[np.float32]]:
        found = model.get_image_features(
            inputs["pixel_values"], inputs["spatial_shapes"], inputs["pixel_attention_mask"]
        ).pooler_output
        return self.by_picture(found, inputs)

    def takes(self, picture: Picture) -> bool:
        return fits(picture)


def fits(picture: Picture) -> bool:
    """Whether a picture resized to a whole one has no more patches than the processor has room for."""
    return max(picture.width, picture.height) < 12 * min(picture.width, picture.height)


_TEXT = {
    **TEXT, "model_type": "lfm2", "vocab_size": N_TEXT + len(TOKENS), "num_hidden_layers": 4,
    "layer_types": ["conv", "full_attention", "conv", "conv"], "block_auto_adjust_ff_dim": False,
}  # fmt: skip
_VISION = {
    **VISION, "model_type": "siglip2_vision_model", "num_patches": 25, "patch_size": PATCH, "vision_use_head": False,
}  # fmt: skip
_PROCESSOR = {
    "encoder_patch_size": PATCH, "downsample_factor": MERGE, "tile_size": TILE, "min_tiles": 2,
    "max_tiles": MOST_TILES, "min_image_tokens": 4, "max_image_tokens": 16,
}  # fmt: skip


def _case(name: str, *, seed: int, **config: Any) -> Lfm2Case:
    return Lfm2Case(
        name=name, model="Lfm2VlForConditionalGeneration",
        config={"text_config": _TEXT, "vision_config": _VISION, "image_token_id": IMAGE,
                "projector_hidden_size": 80, **config},
        placeholder="<image>", tokens=TOKENS, mark=END,
        pictures=tuple(filter(fits, PICTURES)), files={"preprocessor_config.json": _PROCESSOR}, seed=seed,
        prompts={
            **PROMPTS, "two": (Picture(31, 97, 1), "and\n", Picture(24, 31, 2), "\n\nare they alike?"),
            "three": ("a", Picture(34, 30, 3), "b", Picture(5, 3, 4), Picture(70, 50, 5), "c"),
        },
    )  # fmt: skip


CASES = (
    _case("lfm2-vl", seed=2),
    _case("lfm2-vl-plain-projector", seed=4, projector_use_layernorm=False, projector_bias=False),
)
