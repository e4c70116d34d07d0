"""LLaVA's vision part in llama.cpp's files ("mmproj"): its names there -> the names that the model reads."""

from __future__ import annotations

TYPES = ("mlp",)
"""Values of clip.projector_type. The first files have none, and are of this type."""

KEYS = {
    **{
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
            "vision.feature_layer",
            "use_gelu",
            "use_silu",
        )
    },
    # These are (width, height); transformers has the same lists as (height, width).
    "vision.image_grid_pinpoints": "vision.image_grid_sizes",
}
"""Key below `clip.` -> key below the architecture."""

NAMES = (
    (r"v\.class_embd", r"v.class_embedding.weight"),
    (r"v\.patch_embd\.(weight|bias)", r"v.patch_embedding.\1"),
    (r"v\.position_embd\.weight", r"v.position_embedding.weight"),
    (r"v\.pre_ln\.(weight|bias)", r"v.pre_layernorm.\1"),
    (r"v\.post_ln\.(weight|bias)", r"v.post_layernorm.\1"),
    (r"v\.blk\.(\d+)\.ln([12])\.(weight|bias)", r"v.blk.\1.layer_norm\2.\3"),
    (r"v\.blk\.(\d+)\.attn_out\.(weight|bias)", r"v.blk.\1.attn_output.\2"),
    (r"v\.blk\.(\d+)\.ffn_up\.(weight|bias)", r"v.blk.\1.mlp.fc1.\2"),
    (r"v\.blk\.(\d+)\.ffn_down\.(weight|bias)", r"v.blk.\1.mlp.fc2.\2"),
    (r"mm\.0\.(weight|bias)", r"mm.linear_1.\1"),
    (r"mm\.2\.(weight|bias)", r"mm.linear_2.\1"),
    (r"model\.image_newline", r"mm.image_newline.weight"),
)
"""(regular expression of a tensor's whole name, what replaces it)."""
