"""SigLIP's half that reads images."""

from __future__ import annotations

from tests.models.image_encoders import SIDE, Case

_PROCESSOR = {"size": {"height": SIDE, "width": SIDE}}

CASES = (
    Case("siglip-vision", "SiglipModel", _PROCESSOR),
    Case("siglip-vision-bf16", "SiglipModel", {**_PROCESSOR, "resample": 2}, dtype="BF16"),
)
