"""Mistral 3 with Pixtral's tower. Rows of an image end with a token each."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.models.vision.harness import N_CTX, N_TEXT, PICTURES, Case, Token
from tests.models.vision.pictures import Picture

TOKENS = (
    Token("[IMG]", "image_token"),
    Token("[IMG_BREAK]", "image_break_token"),
    Token("[IMG_END]", "image_end_token"),
)
PATCH, MERGE, LONGEST = 4, 2, 56

SMALL = tuple(picture for picture in PICTURES if max(picture.width, picture.height) < 1_500)
"""Transformers refuses the long ones; and a large one takes seconds to be drawn."""


@dataclass(frozen=True, kw_only=True)
class Mistral3Case(Case):
    @property
    def sizes(self) -> tuple[int, int]:
        """Side of a patch in pixels, and of a block in patches."""
        return self.config["vision_config"]["patch_size"], self.config.get("spatial_merge_size", 1)

    def processor(self, tokenizer: Any) -> Any:
        from transformers.models.pixtral import image_processing_pil_pixtral as slow  # noqa: PLC0415

        # The processor takes one function from the module that needs torchvision; the slow one has the same.
        sys.modules.setdefault("transformers.models.pixtral.image_processing_pixtral", slow)
        from transformers.models.pixtral.processing_pixtral import PixtralProcessor  # noqa: PLC0415

        patch, merge = self.sizes
        images = slow.PixtralImageProcessorPil(**self.files["preprocessor_config.json"])
        return PixtralProcessor(images, tokenizer, patch_size=patch, spatial_merge_size=merge)

    def features(self, model: Any, inputs: Any) -> list[Any]:
        found = model.get_image_features(inputs["pixel_values"], image_sizes=inputs["image_sizes"]).pooler_output
        return [rows.float().numpy() for rows in found]

    def arrays(self, inputs: Any) -> Mapping[str, NDArray[Any]]:
        """The pixels of the processor, cut into patches in the order of blocks, and the place of each patch."""
        patch, merge = self.sizes
        height, width = (n // patch for n in inputs["image_sizes"][0].tolist())
        grid = np.mgrid[0:height, 0:width]
        patches = inputs["pixel_values"][0].numpy().reshape(3, height, patch, width, patch).transpose(1, 3, 0, 2, 4)
        return {
            "patches": _blocks(patches.reshape(height, width, -1), merge),
            "positions": np.pad(_blocks(grid.transpose(1, 2, 0), merge).T, ((0, 2), (0, 0))),
        }

    def takes(self, picture: Picture) -> bool:
        sides = picture.width, picture.height
        return max(sides) <= LONGEST or min(sides) * LONGEST >= max(sides)


def _blocks(values: NDArray[Any], merge: int) -> NDArray[Any]:
    """[rows, columns, n] of patches -> [patches, n], squares of `merge` times `merge` after each other."""
    rows, columns, n = values.shape
    squares = values.reshape(rows // merge, merge, columns // merge, merge, n).swapaxes(1, 2)
    return squares.reshape(-1, n)


_TEXT = {
    "model_type": "mistral", "vocab_size": N_TEXT + len(TOKENS), "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "max_position_embeddings": N_CTX, "sliding_window": None, "tie_word_embeddings": False,
    "bos_token_id": 317, "eos_token_id": 318,
}  # fmt: skip
_VISION = {
    "model_type": "pixtral", "num_hidden_layers": 3, "hidden_size": 48, "num_attention_heads": 3,
    "intermediate_size": 72, "patch_size": PATCH, "image_size": LONGEST, "hidden_act": "silu",
}  # fmt: skip
_OUTER = {
    "text_config": _TEXT, "vision_config": _VISION, "image_token_index": N_TEXT, "tie_word_embeddings": False,
}  # fmt: skip


def _files(patch: int) -> dict[str, Any]:
    size = {"height": patch, "width": patch}
    return {"preprocessor_config.json": {"size": {"longest_edge": LONGEST}, "patch_size": size}}


CASES = (
    Mistral3Case(
        name="mistral3",
        model="Mistral3ForConditionalGeneration",
        config={**_OUTER, "spatial_merge_size": MERGE},
        files=_files(PATCH),
        placeholder="[IMG]",
        tokens=TOKENS,
        pictures=SMALL,
        seed=7,
        embeddings=1.0,
    ),
    Mistral3Case(
        name="pixtral",
        model="LlavaForConditionalGeneration",
        config={
            **_OUTER, "vision_config": {**_VISION, "patch_size": PATCH * MERGE}, "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        },
        files=_files(PATCH * MERGE),
        placeholder="[IMG]",
        tokens=TOKENS,
        pictures=SMALL,
        seed=2,
        embeddings=2.0,
    ),
)  # fmt: skip
