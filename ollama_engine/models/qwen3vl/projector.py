"""The vision part of Qwen3-VL and Qwen3.5 in llama.cpp's files ("mmproj"): its names there -> those the model reads."""

from __future__ import annotations

from ollama_engine.models.projectors import Projector, tower_keys

PROJECTOR = Projector(
    "{}",
    types=("qwen3vl_merger",),
    keys={
        **tower_keys("vision.spatial_merge_size"),
        "vision.image_min_pixels": "vision.min_pixels",
        "vision.image_max_pixels": "vision.max_pixels",
    },
    names=(
        (r"v\.patch_embd\.weight", r"v.patch_embed_0.weight"),
        (r"v\.patch_embd\.weight\.1", r"v.patch_embed_1.weight"),
        (r"v\.patch_embd\.bias", r"v.patch_embed.bias"),
        (r"v\.position_embd\.weight", r"v.pos_embed.weight"),
        (r"v\.blk\.(\d+)\.ln([12])\.(weight|bias)", r"v.blk.\1.norm\2.\3"),
        (r"v\.blk\.(\d+)\.ffn_up\.(weight|bias)", r"v.blk.\1.mlp.linear_fc1.\2"),
        (r"v\.blk\.(\d+)\.ffn_down\.(weight|bias)", r"v.blk.\1.mlp.linear_fc2.\2"),
        (r"v\.deepstack\.(\d+)\.fc([12])\.(weight|bias)", r"v.deepstack.\1.linear_fc\2.\3"),
        (r"v\.post_ln\.(weight|bias)", r"v.merger.norm.\1"),
        (r"mm\.0\.(weight|bias)", r"v.merger.linear_fc1.\1"),
        (r"mm\.2\.(weight|bias)", r"v.merger.linear_fc2.\1"),
    ),
)
