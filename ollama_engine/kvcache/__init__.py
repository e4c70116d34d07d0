"""KV caches: policy, bookkeeping of cells, and storage.

LayerView, ImageView, StateView, StepCache, Cache   protocols for models, the executor and the runner
Shiftable, Saveable, Recurrent                      what only some caches can do
make_cache, make_null_cache   the cache for a model's layers; the latter for embeddings
CausalCache     every token sees the earlier ones of its sequence: all, or those of a window or chunk
CrossAttentionCache   every token sees the latest image of its sequence, and those right before it
RecurrentCache  a state for each sequence, from which it goes on; StateSlots (pure), StateStore
NullCache       stores nothing: a token sees its sequence within the batch, all of it or up to itself
CompositeCache  layers of different kinds
CausalReader    a causal cache as layers with queries only see it: those of another model (make_reader)
CacheConfig     element type, flash attention, padding
Visibility      which earlier positions a token attends to (pure)
Cells           which token lies in which row (in C), ImageSlots which image in which slot (pure)
MaskedHistory   a mask over a run of cells; SpanPolicy: which run (pure); MaskBuffer: memory of masks and indices
PagedHistory    KV indices for few rows
KeyValueStore   the tensors; Mover rotates keys to other positions; SavedRows: a sequence's keys and values as bytes

CrossAttentionCache, with its ImageSlots, is imported when a model asks for one.
"""

from __future__ import annotations

from ollama_engine.kvcache.base import (
    Cache,
    CellUsage,
    GraphInputs,
    ImageView,
    KVIndices,
    LayerView,
    Recurrent,
    Saveable,
    Segments,
    Shiftable,
    StateView,
    StepCache,
)
from ollama_engine.kvcache.causal import CausalCache
from ollama_engine.kvcache.cells import MAX_SEQUENCES, Cells
from ollama_engine.kvcache.composite import CompositeCache, CompositeStepCache
from ollama_engine.kvcache.config import CacheConfig, LayerShape
from ollama_engine.kvcache.make import make_cache, make_null_cache, make_reader
from ollama_engine.kvcache.move import ShiftKeys
from ollama_engine.kvcache.recurrent import RecurrentCache
from ollama_engine.kvcache.rows import SavedRows, Saving
from ollama_engine.kvcache.visibility import Visibility

__all__ = [
    "MAX_SEQUENCES",
    "Cache",
    "CacheConfig",
    "CausalCache",
    "CellUsage",
    "Cells",
    "CompositeCache",
    "CompositeStepCache",
    "GraphInputs",
    "ImageView",
    "KVIndices",
    "LayerShape",
    "LayerView",
    "Recurrent",
    "RecurrentCache",
    "Saveable",
    "SavedRows",
    "Saving",
    "Segments",
    "ShiftKeys",
    "Shiftable",
    "StateView",
    "StepCache",
    "Visibility",
    "make_cache",
    "make_null_cache",
    "make_reader",
]
