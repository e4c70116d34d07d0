"""CLIP, texts and images; the config of OpenAI's files names an end token that is none."""

from __future__ import annotations

from tests.models.image_encoders import SIDE, Case

_PROCESSOR = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
_OUTER = {"projection_dim": 20}

CASES = (
    Case("clip-dual", "CLIPModel", _PROCESSOR, outer=_OUTER, text={"eos_token_id": 2}),
    Case(
        "clip-dual-gelu-bf16", "CLIPModel", _PROCESSOR, {"hidden_act": "gelu"}, _OUTER, "BF16", {"hidden_act": "gelu"}
    ),
)
