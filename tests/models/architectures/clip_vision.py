"""CLIP's half that reads images; its vectors are as long as the outer config says."""

from __future__ import annotations

from tests.models.image_encoders import SIDE, Case

_PROCESSOR = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}

CASES = (
    Case("clip-vision", "CLIPModel", _PROCESSOR, outer={"projection_dim": 20}),
    Case("clip-vision-gelu-bf16", "CLIPModel", _PROCESSOR, {"hidden_act": "gelu"}, {"projection_dim": 20}, "BF16"),
)
