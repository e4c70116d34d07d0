"""Gemma 3's vision part in llama.cpp's files ("mmproj"): its names there -> the names that the model reads."""

from __future__ import annotations

TYPES = ("gemma3",)
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
    (r"v\.patch_embd\.(weight|bias)", r"v.patch_embedding.\1"),
    (r"v\.position_embd\.weight", r"v.position_embedding.weight"),
    (r"v\.blk\.(\d+)\.ln([12])\.(weight|bias)", r"v.blk.\1.layer_norm\2.\3"),
    (r"v\.blk\.(\d+)\.attn_out\.(weight|bias)", r"v.blk.\1.attn_output.\2"),
    (r"v\.blk\.(\d+)\.ffn_up\.(weight|bias)", r"v.blk.\1.mlp.fc1.\2"),
    (r"v\.blk\.(\d+)\.ffn_down\.(weight|bias)", r"v.blk.\1.mlp.fc2.\2"),
    (r"v\.post_ln\.(weight|bias)", r"v.post_layernorm.\1"),
    # Both dialects store the norm with 1 added, and the projection as it is published.
    (r"mm\.soft_emb_norm\.weight", r"mm.mm_soft_emb_norm.weight"),
    (r"mm\.input_projection\.weight", r"mm.mm_input_projection.weight"),
)
"""(regular expression of a tensor's whole name, what replaces it)."""
