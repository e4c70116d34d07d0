"""Qwen3-VL, dense and with experts, and Qwen3.5, whose tower has no features for layers of the text part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.models.architectures.qwen35 import LINEAR
from tests.models.vision.harness import N_CTX, N_TEXT
from tests.models.vision.qwen25vl import BLOCK, MERGE, MOST_PIXELS, PATCH, PLACEHOLDER, SMALL, TOKENS, QwenCase

GRID = 6
HALF = [0.5, 0.5, 0.5]
WHOLE = 10_000
"""A window of so many blocks is any picture."""


@dataclass(frozen=True, kw_only=True)
class Qwen3Case(QwenCase):
    window: int = WHOLE
    processor_class: str | None = "Qwen3VLProcessor"

    def weight(self, name: str, shape: Sequence[int]) -> NDArray[np.float32]:
        values = super().weight(name, shape)
        return values + np.float32(1) if name.endswith(("norm1.weight", "norm2.weight")) else values

    def features(self, model: Any, inputs: Any) -> list[Any]:
        """Each embedding, and behind it the features of its image for the first layers."""
        made = model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"])
        layers = [made.pooler_output, *(getattr(made, "deepstack_features", None) or ())]
        return [np.concatenate([part.float().numpy() for part in parts], axis=1) for parts in zip(*layers, strict=True)]

    def arrays(self, inputs: Any) -> Mapping[str, NDArray[Any]]:
        from transformers.vision_utils import get_vision_interpolation_indices_and_weights  # noqa: PLC0415

        corners, weights = get_vision_interpolation_indices_and_weights(
            inputs["image_grid_thw"], GRID, "bilinear", align_corners=True, spatial_merge_size=MERGE
        )
        return {**super().arrays(inputs), "corners": corners.numpy().T, "weights": weights.numpy().T}


_TEXT = {
    "vocab_size": N_TEXT + len(TOKENS), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": N_CTX,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [6, 5, 5]},
    "tie_word_embeddings": False, "bos_token_id": 317, "eos_token_id": 318, "pad_token_id": 0,
}  # fmt: skip
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
_DELTA = {
    **_TEXT, **LINEAR,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 3, 2],
                        "partial_rotary_factor": 0.5},
}  # fmt: skip
_VISION = {
    "depth": 4, "hidden_size": 48, "intermediate_size": 72, "num_heads": 3, "patch_size": PATCH, "out_hidden_size": 64,
    "spatial_merge_size": MERGE, "temporal_patch_size": 2, "num_position_embeddings": GRID**2,
}  # fmt: skip
_DEEPSTACK = {**_VISION, "deepstack_visual_indexes": [0, 2]}
_OUTER = {
    "vision_start_token_id": N_TEXT, "vision_end_token_id": N_TEXT + 1, "image_token_id": N_TEXT + 2,
    "video_token_id": N_TEXT + 3, "tie_word_embeddings": False,
}  # fmt: skip
_PROCESSOR = {
    "size": {"shortest_edge": 4 * BLOCK**2, "longest_edge": MOST_PIXELS}, "image_mean": HALF, "image_std": HALF,
}  # fmt: skip


def _case(
    name: str, stem: str, text: Mapping[str, Any], vision: Mapping[str, Any], *, seed: int, norms: float = 1.0,
    embeddings: float = 1.0,
) -> Qwen3Case:  # fmt: skip
    return Qwen3Case(
        name=name, model=f"{stem}ForConditionalGeneration",
        config={**_OUTER, "text_config": text, "vision_config": vision}, norms=norms,
        files={"preprocessor_config.json": _PROCESSOR}, placeholder=PLACEHOLDER, tokens=TOKENS, pictures=SMALL,
        seed=seed, embeddings=embeddings,
    )  # fmt: skip


CASES = (
    _case("qwen3vl", "Qwen3VL", _TEXT, _DEEPSTACK, seed=10),
    _case("qwen3vlmoe", "Qwen3VLMoe", {**_TEXT, **_EXPERTS}, _DEEPSTACK, seed=2, embeddings=2.0),
    _case("qwen35", "Qwen3_5", _DELTA, _VISION, seed=4, norms=0.0),
    _case("qwen35moe", "Qwen3_5Moe", {**_DELTA, **_EXPERTS, "shared_expert_intermediate_size": 40}, _VISION, seed=14,
          norms=0.0),
)  # fmt: skip
