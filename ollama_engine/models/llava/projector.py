"""LLaVA's vision part in llama.cpp's files ("mmproj"): its names there -> the names that the model reads."""

from __future__ import annotations

from ollama_engine.models.projectors import CLIP_TOWER, Projector, tower_keys

PROJECTOR = Projector(
    "llava",
    # The first files have none, and are of this type.
    types=("mlp",),
    keys={
        **tower_keys("vision.image_size", "vision.feature_layer", "use_gelu", "use_silu"),
        # These are (width, height); transformers has the same lists as (height, width).
        "vision.image_grid_pinpoints": "vision.image_grid_sizes",
    },
    names=(
        *CLIP_TOWER,
        (r"mm\.0\.(weight|bias)", r"mm.linear_1.\1"),
        (r"mm\.2\.(weight|bias)", r"mm.linear_2.\1"),
        (r"model\.image_newline", r"mm.image_newline.weight"),
    ),
)
