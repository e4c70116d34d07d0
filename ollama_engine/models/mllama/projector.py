"""Llama 3.2 Vision's second file, as Ollama's library had it at first: names there -> names that the model reads.

Not llama.cpp's format: the architecture is `mllama` in both files, and keys are called as in one file. Gates are stored
as there, too. Blocks have the names of the first clip files, which have ffn_up and ffn_down exchanged.

The text part is that of Ollama's later converter, which moved the rows of queries and keys of cross-attention, and not
the weights of their norms: `TextOptions.cross_pairs`. That converter names the suffix on purpose, so it is taken to
continue what the first files had; none of these could be looked into here.
"""

from __future__ import annotations

from ollama_engine.models.projectors import Projector

KEYS = (
    "vision.block_count",
    "vision.global.block_count",
    "vision.embedding_length",
    "vision.feed_forward_length",
    "vision.attention.head_count",
    "vision.attention.layer_norm_epsilon",
    "vision.image_size",
    "vision.patch_size",
    "vision.max_num_tiles",
    "vision.num_channels",
    "vision.intermediate_layers_indices",
)
BLOCK = r"v\.((?:global\.)?blk\.\d+)\."

PROJECTOR = Projector(
    "mllama",
    types=("mllama",),
    keys={key: key for key in KEYS},
    names=(
        (BLOCK + r"ln1\.(weight|bias)", r"v.\1.attn_norm.\2"),
        (BLOCK + r"ln2\.(weight|bias)", r"v.\1.ffn_norm.\2"),
        (BLOCK + r"attn_out\.weight", r"v.\1.attn_output.weight"),
    ),
    prefix="mllama",
)
