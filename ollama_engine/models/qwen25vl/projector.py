"""Qwen2.5-VL's vision part in llama.cpp's files ("mmproj"): its names there -> the names that the model reads."""

from __future__ import annotations

TYPES = ("qwen2.5vl_merger", "qwen2vl_merger")
"""Values of clip.projector_type."""

KEYS = {
    "vision.block_count": "vision.block_count",
    "vision.embedding_length": "vision.embedding_length",
    "vision.feed_forward_length": "vision.feed_forward_length",
    "vision.attention.head_count": "vision.attention.head_count",
    "vision.attention.layer_norm_epsilon": "vision.attention.layer_norm_epsilon",
    "vision.patch_size": "vision.patch_size",
    "vision.image_mean": "vision.image_mean",
    "vision.image_std": "vision.image_std",
    "vision.spatial_merge_size": "vision.spatial_merge_size",
    "vision.window_size": "vision.window_size",
    "vision.n_wa_pattern": "vision.n_wa_pattern",
    "vision.wa_layer_indexes": "vision.fullatt_block_indexes",
    "vision.image_min_pixels": "vision.min_pixels",
    "vision.image_max_pixels": "vision.max_pixels",
}
"""Key below `clip.` -> key below the architecture."""

NAMES = (
    (r"v\.patch_embd\.weight", r"v.patch_embd_0.weight"),
    (r"v\.patch_embd\.weight\.1", r"v.patch_embd_1.weight"),
    (r"v\.post_ln\.(weight|bias)", r"v.merger.ln_q.\1"),
    (r"mm\.([02])\.(weight|bias)", r"v.merger.mlp.\1.\2"),
)
"""(regular expression of a tensor's whole name, what replaces it)."""
