"""The cell table: which row of the cache holds which token's keys and values. It knows numbers, not tensors.

A cell has a position and a count of the sequences that share it; a sequence has a list of its cells in the order of
positions. The table is C (csrc/kvcache/cells.h, kv_indices.h, mask.h); the tests compare it with a numpy twin.
"""

from __future__ import annotations

from ollama_engine.kvcache._cells import MAX_CELLS, MAX_SEQUENCES, Cells, fill_range_mask
from ollama_engine.kvcache.moves import Moves

__all__ = ["MAX_CELLS", "MAX_SEQUENCES", "Cells", "Moves", "fill_range_mask"]
