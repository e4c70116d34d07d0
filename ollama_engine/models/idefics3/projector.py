"""Idefics 3's vision part in llama.cpp's files ("mmproj"): its names there -> the names that the model reads."""

from __future__ import annotations

from ollama_engine.models.projectors import CLIP_TOWER, Projector, tower_keys

PROJECTOR = Projector(
    "idefics3",
    types=("idefics3",),
    keys=tower_keys(
        "vision.image_size", "vision.projector.scale_factor", "vision.preproc_image_size", "use_gelu", "use_silu"
    ),
    names=CLIP_TOWER,
)
