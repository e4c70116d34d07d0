"""Key and value caches: policy and storage; the bookkeeping of cells has no tensor in sight.

Cells         which token lies in which row (pure)
CausalCache   every token sees the earlier ones of its sequence, all or within a window
CacheConfig   element type, flash attention, padding
LayerView     what models call; Cache: what the runner calls
"""

from __future__ import annotations

from ollama_engine.kvcache.base import Cache, LayerView
from ollama_engine.kvcache.causal import CausalCache
from ollama_engine.kvcache.cells import Cells
from ollama_engine.kvcache.config import CacheConfig, LayerShape

__all__ = ["Cache", "CacheConfig", "CausalCache", "Cells", "LayerShape", "LayerView"]
