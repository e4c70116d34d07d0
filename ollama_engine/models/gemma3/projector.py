"""Gemma 3's vision part in llama.cpp's files ("mmproj"): its names there -> the names that the model reads."""

from __future__ import annotations

from ollama_engine.models.projectors import TOWER_BLOCK, Projector, tower_keys

PROJECTOR = Projector(
    "gemma3",
    types=("gemma3",),
    keys=tower_keys("vision.image_size", "vision.projector.scale_factor"),
    names=(
        (r"v\.patch_embd\.(weight|bias)", r"v.patch_embedding.\1"),
        (r"v\.position_embd\.weight", r"v.position_embedding.weight"),
        (r"v\.blk\.(\d+)\.ln([12])\.(weight|bias)", r"v.blk.\1.layer_norm\2.\3"),
        *TOWER_BLOCK,
        (r"v\.post_ln\.(weight|bias)", r"v.post_layernorm.\1"),
        # Both dialects store the norm with 1 added, and the projection as it is published.
        (r"mm\.soft_emb_norm\.weight", r"mm.mm_soft_emb_norm.weight"),
        (r"mm\.input_projection\.weight", r"mm.mm_input_projection.weight"),
    ),
)
