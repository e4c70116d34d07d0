"""Scaled dot-product attention over a cache's history."""

from __future__ import annotations

from ollama_engine.kvcache.base import LayerView
from ollama_engine.ml import ops
from ollama_engine.ml.tensor import Tensor


def attention(query: Tensor, cache: LayerView, scale: float) -> Tensor:
    """softmax(scale q k + mask) v for the cache's current layer.

    `query` f32 [key_dim, heads, n] -> f32 [value_dim * heads, n]. Query heads share key heads in order (GQA).
    """
    keys, values, mask = cache.get()
    heads, n = query.dim(1), query.dim(2)
    rows = ops.permute(query, 0, 2, 1, 3)
    if cache.flash_attention:
        out = ops.flash_attention(rows, keys, values, mask, scale)
        return ops.reshape(out, out.dim(0) * heads, n)
    weights = ops.softmax(ops.mul_mat(keys, rows, precise=True), mask, scale)
    out = ops.permute(ops.mul_mat(values, weights), 0, 2, 1, 3)
    return ops.reshape(ops.cont(out), out.dim(0) * heads, n)
