"""Layers that attend to keys and values of an earlier one: they compute only the rows whose results are asked for."""

from __future__ import annotations

from ollama_engine.kvcache import LayerView
from ollama_engine.kvcache.base import KVIndices, OutputIndices
from ollama_engine.ml import ops
from ollama_engine.ml.graph.tensor import Tensor

__all__ = ["first_shared", "numbers_of", "outputs_seen", "rows_of"]


def first_shared(sources: tuple[int, ...]) -> int:
    """The first layer without keys and values of its own; all behind it are such layers, too."""
    return next((i for i, source in enumerate(sources) if source != i), len(sources))


def outputs_seen(sources: tuple[int, ...], outputs: Tensor | None, cache: LayerView) -> dict[int, KVIndices]:
    """What the batch's `outputs` i32 [m] see of each of the layers `sources`.

    Empty where there is no such choice: where all rows are outputs (None), and where a cache gives a mask.
    """
    if outputs is None or not isinstance(cache, OutputIndices):
        return {}
    for source in sources:
        cache.set_layer(source)
        if not isinstance(cache.get()[2], KVIndices):
            return {}
    seen: dict[int, KVIndices] = {}
    for source in sources:
        cache.set_layer(source)
        indices = cache.output_indices(outputs.dim(0))
        if indices is not None:
            seen[source] = indices
    return seen


def rows_of(x: Tensor, rows: Tensor) -> Tensor:
    """Rows i32 [m] of x [a, b, n] -> [a, b, m]."""
    flat = ops.reshape(x, x.dim(0) * x.dim(1), x.dim(2))
    return ops.reshape(ops.get_rows(flat, rows), x.dim(0), x.dim(1), rows.dim(0))


def numbers_of(numbers: Tensor, rows: Tensor) -> Tensor:
    """The numbers i32 [n] of rows i32 [m] -> i32 [m]."""
    return ops.reshape(ops.get_rows(ops.reshape(numbers, 1, numbers.dim(0)), rows), rows.dim(0))
