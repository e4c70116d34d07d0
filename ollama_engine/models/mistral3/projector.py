"""Pixtral's vision part in llama.cpp's files ("mmproj"): its names there -> the names that the model reads.

Rows of queries and keys are in another order there: neighbours turn together, as in Llama.
"""

from __future__ import annotations

from ollama_engine.models.mistral3.vision import PAIRS
from ollama_engine.models.projectors import Projector, tower_keys

PROJECTOR = Projector(
    "mistral3",
    types=("pixtral",),
    keys={
        **tower_keys("vision.image_size"),
        "projector_type": PAIRS,
        "vision.projector_type": PAIRS,
        "vision.spatial_merge_size": "spatial_merge_size",
        "rope.freq_base": "vision.rope.freq_base",
    },
    names=(
        (r"v\.patch_embd\.weight", r"v.patch_conv.weight"),
        (r"v\.pre_ln\.weight", r"v.encoder_norm.weight"),
        (r"v\.blk\.(\d+)\.ln1\.weight", r"v.blk.\1.attn_norm.weight"),
        (r"v\.blk\.(\d+)\.ln2\.weight", r"v.blk.\1.ffn_norm.weight"),
        (r"v\.blk\.(\d+)\.attn_out\.weight", r"v.blk.\1.attn_output.weight"),
        (r"mm\.input_norm\.weight", r"mm.norm.weight"),
        (r"mm\.patch_merger\.weight", r"mm.patch_merger.merging_layer.weight"),
        (r"mm\.([12])\.(weight|bias)", r"mm.linear_\1.\2"),
    ),
)
