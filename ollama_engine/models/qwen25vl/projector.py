"""Qwen2.5-VL's vision part in llama.cpp's files ("mmproj"): its names there -> the names that the model reads."""

from __future__ import annotations

from ollama_engine.models.projectors import Projector, tower_keys

PROJECTOR = Projector(
    "qwen25vl",
    types=("qwen2.5vl_merger", "qwen2vl_merger"),
    keys={
        **tower_keys("vision.spatial_merge_size", "vision.window_size", "vision.n_wa_pattern"),
        "vision.wa_layer_indexes": "vision.fullatt_block_indexes",
        "vision.image_min_pixels": "vision.min_pixels",
        "vision.image_max_pixels": "vision.max_pixels",
    },
    names=(
        (r"v\.patch_embd\.weight", r"v.patch_embd_0.weight"),
        (r"v\.patch_embd\.weight\.1", r"v.patch_embd_1.weight"),
        (r"v\.post_ln\.(weight|bias)", r"v.merger.ln_q.\1"),
        (r"mm\.([02])\.(weight|bias)", r"v.merger.mlp.\1.\2"),
    ),
)
