"""GLM-OCR's vision part in llama.cpp's files ("mmproj"): its names there -> the names that the model reads."""

from __future__ import annotations

from ollama_engine.models.projectors import Projector, tower_keys

PROJECTOR = Projector(
    "{}",
    types=("glm4v",),
    keys=tower_keys("vision.spatial_merge_size"),
    names=(
        (r"v\.patch_embd\.weight", r"v.patch_embd_0.weight"),
        (r"v\.patch_embd\.weight\.1", r"v.patch_embd_1.weight"),
    ),
)
