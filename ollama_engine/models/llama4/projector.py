"""Llama 4's vision part in llama.cpp's files ("mmproj"): its names there -> the names that the model reads.

Rows of queries and keys are in the order of the published model in both dialects.
"""

from __future__ import annotations

from ollama_engine.models.projectors import TOWER_BLOCK, Projector, tower_keys

PROJECTOR = Projector(
    "llama4",
    types=("llama4",),
    keys=tower_keys("vision.image_size", "vision.projector.scale_factor"),
    names=(
        (r"v\.patch_embd\.weight", r"v.patch_embedding.weight"),
        (r"v\.class_embd(?:\.weight)?", r"v.class_embedding"),
        (r"v\.position_embd\.weight", r"v.positional_embedding_vlm"),
        (r"v\.(pre|post)_ln\.(weight|bias)", r"v.layernorm_\1.\2"),
        (r"v\.blk\.(\d+)\.ln1\.(weight|bias)", r"v.blk.\1.attn_norm.\2"),
        # Newer converters give this norm a name of Gemma 4's.
        (r"v\.blk\.(\d+)\.(?:ln2|attn_post_norm)\.(weight|bias)", r"v.blk.\1.ffn_norm.\2"),
        *TOWER_BLOCK,
        (r"mm\.model\.mlp\.([12])\.weight", r"v.vision_adapter.mlp.fc\1.weight"),
        (r"mm\.model\.fc\.weight", r"mm.linear_1.weight"),
    ),
)
