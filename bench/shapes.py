"""Models that cost little to compute and everything around it: real layers, caches and vocabularies, thin matrices.

What a step, a graph, a moved cell or a table costs depends on how many of them there are, not on how wide a matrix is.
"""

from __future__ import annotations

from dataclasses import replace

from bench.model_shapes import SHAPES

THIN_1B = replace(SHAPES["llama-1b"], name="thin Llama-3.2-1B shape", n_embd=64, n_ff=128, n_head=8)
"""16 layers, 8 heads of 64 in the cache, 128,256 tokens."""

THIN_3B = replace(
    THIN_1B, name="thin Llama-3.2-3B shape", n_layer=28, head_dim=128, n_vocab=1024, bos=768, eos=769
)  # fmt: skip
"""28 layers, 8 heads of 128."""
