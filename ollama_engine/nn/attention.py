"""Scaled dot-product attention over a cache's history."""

from __future__ import annotations

from ollama_engine.errors import ShapeError
from ollama_engine.kvcache.base import KVIndices, LayerView
from ollama_engine.kvcache.rotation import rotated
from ollama_engine.ml import ops
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.ops.operands import on_cpu_alone, read_softcap


def attention(
    query: Tensor,
    cache: LayerView,
    scale: float,
    *,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    indices: KVIndices | None = None,
) -> Tensor:
    """softmax(scale q k + mask) v for the cache's current layer. The cache may give KV indices instead of a mask.

    `query` f32 [key_dim, heads, n] -> f32 [value_dim * heads, n]. Query heads share key heads in order (GQA).
    A `softcap` above 0 bounds the scores to softcap * tanh(scores / softcap) before the mask (Gemma 2). `sinks` f32
    [heads] are scores that join the denominator of the softmax and have no value (gpt-oss). Where a cache returns keys
    in parts, each part of the rows attends to its own part. `indices` stand for those of the cache where only some of
    the batch's rows attend.
    """
    query, run = rotated(query, cache.rotation), cache.rotation
    keys, values, seen = cache.get()
    seen = seen if indices is None else indices
    heads, n = query.dim(1), query.dim(2)
    parts = keys.dim(3)
    if parts > 1:
        query = ops.reshape(ops.cont(query), query.dim(0), heads, n // parts, parts)
    rows = ops.permute(query, 0, 2, 1, 3)
    if isinstance(seen, KVIndices):
        out = ops.paged_attention(
            rows, keys, values, seen.ranges, seen.indices, scale, softcap=softcap, sinks=sinks, phases=seen.phases
        )
        return ops.reshape(rotated(out, run), out.dim(0) * heads, n)
    if cache.flash_attention:
        out = ops.flash_attention(rows, keys, values, seen, scale, softcap=softcap, sinks=sinks)
        return ops.reshape(rotated(out, run), out.dim(0) * heads, n)
    scores = ops.mul_mat(keys, rows, precise=True)
    if softcap:
        scores, scale = soft_cap(ops.scale(scores, scale), softcap), 1.0
    weights = ops.softmax(scores, seen, scale, sinks)
    out = ops.permute(ops.mul_mat(values, weights), 0, 2, 1, 3)
    return ops.reshape(rotated(ops.cont(out), run), out.dim(0) * heads, n)


def temperature(positions: Tensor, scale: float, period: int, offset: int = 0) -> Tensor:
    """1 + scale * ln(1 + floor((p + offset) / period)) of positions p, i32 [n] -> f32 [1, 1, n].

    Queries are multiplied by it, so that attention stays sharp in a long text (Nakanishi 2025).
    """
    # Half a position more keeps whole quotients whole where the reciprocal is rounded.
    quotient = ops.scale(ops.cast(positions, "f32"), 1 / period, (offset + 0.5) / period)
    grown = ops.log(ops.scale(ops.unary(quotient, "floor"), 1.0, 1.0))
    return ops.reshape(ops.scale(grown, scale, 1.0), 1, 1, positions.dim(0))


def soft_cap(x: Tensor, cap: float) -> Tensor:
    """cap * tanh(x / cap): almost x for small x, and never beyond the cap, 0.001 to 1e6. Raises ShapeError."""
    if not cap:
        raise ShapeError("soft_cap: the cap is 0, which stands for none; leave the call out")
    cap = read_softcap(cap, "soft_cap")
    if on_cpu_alone(x):
        return ops.soft_cap(x, cap)
    return ops.scale(ops.unary(ops.scale(x, 1 / cap), "tanh"), cap)
