"""Gemma 3's vision part in llama.cpp's files ("mmproj"): its names there -> the names that the model reads."""

from __future__ import annotations

from ollama_engine.models.projectors import CLIP_TOWER, Projector, tower_keys

PROJECTOR = Projector(
    "gemma3",
    types=("gemma3",),
    keys=tower_keys("vision.image_size", "vision.projector.scale_factor"),
    names=(
        *CLIP_TOWER,
        # Both dialects store the norm with 1 added, and the projection as it is published.
        (r"mm\.soft_emb_norm\.weight", r"mm.mm_soft_emb_norm.weight"),
        (r"mm\.input_projection\.weight", r"mm.mm_input_projection.weight"),
    ),
)
