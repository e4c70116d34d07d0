"""SigLIP, texts and images; vectors of texts are as long as hidden states of the tower."""

from __future__ import annotations

from tests.models.image_encoders import SIDE, VISION, Case

_PROCESSOR = {"size": {"height": SIDE, "width": SIDE}}
_TEXT = {"projection_size": VISION["hidden_size"]}

CASES = (
    Case("siglip-dual", "SiglipModel", _PROCESSOR, text=_TEXT),
    Case("siglip-dual-bf16", "SiglipModel", {**_PROCESSOR, "resample": 2}, text=_TEXT, dtype="BF16"),
)
