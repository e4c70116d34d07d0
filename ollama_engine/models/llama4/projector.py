"""Llama 4's vision part in llama.cpp's files ("mmproj"): its names there -> the names that the model reads.

Rows of queries and keys are in the order of the published model in both dialects.
"""

from __future__ import annotations

TYPES = ("llama4",)
"""Values of clip.projector_type."""

KEYS = {
    name: name
    for name in (
        "vision.block_count",
        "vision.embedding_length",
        "vision.feed_forward_length",
        "vision.attention.head_count",
        "vision.attention.layer_norm_epsilon",
        "vision.image_size",
        "vision.patch_size",
        "vision.image_mean",
        "vision.image_std",
        "vision.projector.scale_factor",
    )
}
"""Key below `clip.` -> key below the architecture."""

NAMES = (
    (r"v\.patch_embd\.weight", r"v.patch_embedding.weight"),
    (r"v\.class_embd(?:\.weight)?", r"v.class_embedding"),
    (r"v\.position_embd\.weight", r"v.positional_embedding_vlm"),
    (r"v\.(pre|post)_ln\.(weight|bias)", r"v.layernorm_\1.\2"),
    (r"v\.blk\.(\d+)\.ln1\.(weight|bias)", r"v.blk.\1.attn_norm.\2"),
    # Newer converters give this norm a name of Gemma 4's.
    (r"v\.blk\.(\d+)\.(?:ln2|attn_post_norm)\.(weight|bias)", r"v.blk.\1.ffn_norm.\2"),
    (r"v\.blk\.(\d+)\.attn_out\.(weight|bias)", r"v.blk.\1.attn_output.\2"),
    (r"v\.blk\.(\d+)\.ffn_up\.(weight|bias)", r"v.blk.\1.mlp.fc1.\2"),
    (r"v\.blk\.(\d+)\.ffn_down\.(weight|bias)", r"v.blk.\1.mlp.fc2.\2"),
    (r"mm\.model\.mlp\.([12])\.weight", r"v.vision_adapter.mlp.fc\1.weight"),
    (r"mm\.model\.fc\.weight", r"mm.linear_1.weight"),
)
"""(regular expression of a tensor's whole name, what replaces it)."""
