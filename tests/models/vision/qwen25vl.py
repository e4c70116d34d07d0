"""Qwen2.5-VL. Pictures make windows of every size: whole ones, and smaller ones at the right and bottom edge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_engine.models.qwen25vl.windows import Windows
from tests.models.vision.harness import N_CTX, N_TEXT, PICTURES, Case, Token
from tests.models.vision.pictures import Picture

TOKENS = (
    Token("<|vision_start|>", "vision_start_token"),
    Token("<|vision_end|>", "vision_end_token"),
    Token("<|image_pad|>", "image_token"),
    Token("<|video_pad|>", "video_token"),
)
PATCH, MERGE, WINDOW = 4, 2, 3
BLOCK = PATCH * MERGE
PLACEHOLDER = "<|vision_start|><|image_pad|><|vision_end|>"
MOST_PIXELS = 48 * BLOCK**2

SMALL = tuple(picture for picture in PICTURES if max(picture.width, picture.height) < 1_500)
"""Transformers refuses the long ones; and a large one takes seconds to be drawn."""


@dataclass(frozen=True, kw_only=True)
class QwenCase(Case):
    window: int = WINDOW
    """Side of a window in blocks. Without windows of its own, the tower has patches in the order of default ones."""
    processor_class: str | None = None
    """In transformers, where it is not named like the model."""
    image_processor_class: str = "qwen2_vl.image_processing_pil_qwen2_vl.Qwen2VLImageProcessorPil"

    def processor(self, tokenizer: Any) -> Any:
        import transformers as hf  # noqa: PLC0415

        vision = self.config["vision_config"]
        module, _, images_class = self.image_processor_class.rpartition(".")
        images = getattr(import_module(f"transformers.models.{module}"), images_class)(
            **self.files["preprocessor_config.json"], patch_size=vision["patch_size"],
            merge_size=vision["spatial_merge_size"],
        )  # fmt: skip

        kind: Any = getattr(hf, self.processor_class or self.model.replace("ForConditionalGeneration", "Processor"))

        class WithoutVideo(kind):  # type: ignore[misc]
            def check_argument_for_proper_class(self, name: str, argument: Any) -> Any:
                """A processor of videos needs torchvision, and there are no videos."""
                if name == "video_processor":
                    return argument
                return super().check_argument_for_proper_class(name, argument)

        return WithoutVideo(images, tokenizer, video_processor=None)

    def features(self, model: Any, inputs: Any) -> list[Any]:
        found = model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"]).pooler_output
        return [rows.float().numpy() for rows in found]

    def arrays(self, inputs: Any) -> Mapping[str, NDArray[Any]]:
        """The processor's patches are in the order of blocks, and have the picture for both of their frames."""
        from transformers.vision_utils import get_vision_position_ids  # noqa: PLC0415

        rows, columns = (n // MERGE for n in inputs["image_grid_thw"][0, 1:].tolist())
        order = Windows.of(rows, columns, self.window).order
        patches = inputs["pixel_values"].numpy().reshape(rows * columns, MERGE**2, 3, 2, PATCH**2)
        assert (patches[:, :, :, 0] == patches[:, :, :, 1]).all()
        places = get_vision_position_ids(inputs["image_grid_thw"], MERGE).numpy().reshape(-1, MERGE**2, 2)[order]
        return {
            "patches": patches[order, :, :, 0].reshape(-1, 3 * PATCH**2),
            "positions": np.pad(places.reshape(-1, 2).T, ((0, 2), (0, 0))),
        }

    def takes(self, picture: Picture) -> bool:
        return max(picture.width, picture.height) <= 200 * min(picture.width, picture.height)


_TEXT = {
    "vocab_size": N_TEXT + len(TOKENS), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": N_CTX,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6]},
    "tie_word_embeddings": False, "bos_token_id": 317, "eos_token_id": 318, "pad_token_id": 0,
}  # fmt: skip
_VISION = {
    "depth": 3, "num_heads": 3, "patch_size": PATCH, "spatial_merge_size": MERGE, "temporal_patch_size": 2,
}  # fmt: skip
_OUTER = {
    "text_config": _TEXT, "vision_start_token_id": N_TEXT, "vision_end_token_id": N_TEXT + 1,
    "image_token_id": N_TEXT + 2, "video_token_id": N_TEXT + 3, "tie_word_embeddings": False,
}  # fmt: skip
_FILES = {"preprocessor_config.json": {"size": {"shortest_edge": 4 * BLOCK**2, "longest_edge": MOST_PIXELS}}}

CASES = (
    QwenCase(
        name="qwen25vl",
        model="Qwen2_5_VLForConditionalGeneration",
        config={
            **_OUTER,
            "vision_config": {
                **_VISION, "hidden_size": 48, "intermediate_size": 72, "window_size": WINDOW * BLOCK,
                "fullatt_block_indexes": [1], "out_hidden_size": 64,
            },
        },
        files=_FILES,
        placeholder=PLACEHOLDER,
        tokens=TOKENS,
        pictures=SMALL,
        seed=4,
        embeddings=1.0,
    ),
    QwenCase(
        name="qwen2vl",
        model="Qwen2VLForConditionalGeneration",
        config={**_OUTER, "vision_config": {**_VISION, "embed_dim": 48, "hidden_size": 64, "mlp_ratio": 2}},
        window=112 // BLOCK,
        files=_FILES,
        placeholder=PLACEHOLDER,
        tokens=TOKENS,
        pictures=SMALL,
        seed=2,
        embeddings=2.0,
    ),
)  # fmt: skip
