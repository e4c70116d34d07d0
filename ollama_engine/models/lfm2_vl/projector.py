"""LFM2-VL's vision part in llama.cpp's files ("mmproj"): its names there -> the names that the model reads."""

from __future__ import annotations

from ollama_engine.models.projectors import CLIP_TOWER, Projector, tower_keys

PROJECTOR = Projector(
    "{}",
    types=("lfm2",),
    keys=tower_keys("vision.image_size", "vision.projector.scale_factor", "use_gelu", "use_silu"),
    names=CLIP_TOWER,
)
