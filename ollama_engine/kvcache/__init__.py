"""Key and value caches: policy and storage; the bookkeeping of cells has no tensor in sight.

LayerView       what models call; Cache: what the runner calls
Visibility      which earlier positions a token attends to (pure)
Cells           which token lies in which row (pure)
KeyValueStore   the rows
Mover           moves rows and turns keys to other positions
CausalCache     every token sees the earlier ones of its sequence: all, or those of a window or chunk
CacheConfig     element type, flash attention, padding
"""

from __future__ import annotations

from ollama_engine.kvcache.base import Cache, CellUsage, LayerView
from ollama_engine.kvcache.causal import CausalCache
from ollama_engine.kvcache.cells import MAX_SEQUENCES, Cells
from ollama_engine.kvcache.config import CacheConfig, LayerShape
from ollama_engine.kvcache.move import ShiftKeys
from ollama_engine.kvcache.visibility import Visibility

__all__ = [
    "MAX_SEQUENCES",
    "Cache",
    "CacheConfig",
    "CausalCache",
    "CellUsage",
    "Cells",
    "LayerShape",
    "LayerView",
    "ShiftKeys",
    "Visibility",
]
