"""LLaVA's vision part in llama.cpp's files ("mmproj"): its names there -> the names that the model reads."""

from __future__ import annotations

from ollama_engine.models.projectors import TOWER_BLOCK, Projector, tower_keys

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
        (r"v\.class_embd", r"v.class_embedding.weight"),
        (r"v\.patch_embd\.(weight|bias)", r"v.patch_embedding.\1"),
        (r"v\.position_embd\.weight", r"v.position_embedding.weight"),
        (r"v\.pre_ln\.(weight|bias)", r"v.pre_layernorm.\1"),
        (r"v\.post_ln\.(weight|bias)", r"v.post_layernorm.\1"),
        (r"v\.blk\.(\d+)\.ln([12])\.(weight|bias)", r"v.blk.\1.layer_norm\2.\3"),
        *TOWER_BLOCK,
        (r"mm\.0\.(weight|bias)", r"mm.linear_1.\1"),
        (r"mm\.2\.(weight|bias)", r"mm.linear_2.\1"),
        (r"model\.image_newline", r"mm.image_newline.weight"),
    ),
)
