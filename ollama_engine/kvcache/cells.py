"""The cell table: which token's keys and values lie in which row of the cache. Numbers only, no tensor in sight.

A cell knows its position and how many sequences share it; a sequence lists its cells in the order of positions. The
table is in C (csrc/kvcache/cells.h, kv_indices.h, mask.h); its numpy twin is in the tests.
"""

from __future__ import annotations

from ollama_engine.kvcache._cells import BLOCK, MAX_CELLS, MAX_SEQUENCES, Cells
from ollama_engine.kvcache.moves import Moves

__all__ = ["BLOCK", "MAX_CELLS", "MAX_SEQUENCES", "Cells", "Moves"]
