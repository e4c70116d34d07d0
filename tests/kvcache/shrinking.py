"""A causal cache with fewer cells than it has rows."""

from __future__ import annotations

from ollama_engine.kvcache import CausalCache
from ollama_engine.kvcache.cells import Cells
from ollama_engine.kvcache.gathered import GatheredHistory
from ollama_engine.kvcache.masked import MaskedHistory


def give_cells(cache: CausalCache, n_cells: int) -> None:
    """An empty table of so many cells, which is all that the cache knows of from now on."""
    limits = cache.visibility
    cache.cells = Cells(n_cells, window=limits.window, chunk=limits.chunk, memory=cache.memory)
    cache.saveable._cells = cache.cells
    if cache.shiftable is not None:
        cache.shiftable._cells = cache.cells
    padding = cache.config.history_padding
    ways = cache._histories
    ways._cells = cache.cells
    ways._masked = MaskedHistory(n_cells, padding, ways._buffer)
    ways._gathered = GatheredHistory(n_cells // 2, padding, ways._buffer)
