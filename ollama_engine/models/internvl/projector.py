"""InternVL's vision part in llama.cpp's files ("mmproj"): its names there -> the names that the model reads."""

from __future__ import annotations

from ollama_engine.models.projectors import CLIP_TOWER, Projector, tower_keys

PROJECTOR = Projector(
    "internvl-{}",
    types=("internvl",),
    # Not `use_gelu`: there is GELU's tanh form, which the published model does not have.
    keys=tower_keys(
        "vision.image_size", "vision.projector.scale_factor", "vision.preproc_min_tiles", "vision.preproc_max_tiles",
        "use_silu",
    ),
    names=CLIP_TOWER,
)  # fmt: skip
