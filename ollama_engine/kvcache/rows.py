"""Rows of a store as plain bytes: what one sequence has, taken out and put back. No step may be in flight.

A row is one token's keys, or values, of one layer as the cache stores them. Rows of values are the same bytes whether
the store keeps them permuted or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ollama_engine.input import Int32Array
from ollama_engine.kvcache.store import KeyValueStore
from ollama_engine.ml import ops
from ollama_engine.ml.context import Context
from ollama_engine.ml.tensor import Tensor

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class SavedRows:
    """What layers of one kind hold of a sequence."""

    positions: Int32Array
    """[n], ascending. A window or chunk has dropped those that no later token sees."""
    rows: tuple[Bytes, ...]
    """Keys and values of each layer in turn, uint8 [n, bytes of a row]."""


def row_bytes(store: KeyValueStore) -> tuple[int, ...]:
    """Bytes of a row: keys and values of each layer in turn."""
    return tuple(tensor.nbytes // store.n_cells for tensor in store.tensors())


def read_rows(store: KeyValueStore, cells: Int32Array) -> tuple[Bytes, ...]:
    """The rows of these cells, uint8 [n, bytes of a row]. Graphs that were allocated lose their memory."""
    sizes = row_bytes(store)
    if not len(cells):
        return tuple(np.empty((0, size), dtype=np.uint8) for size in sizes)
    with Context(store.backend) as ctx:
        return tuple(span.read()[cells - span.begin] for span in _spans(store, cells, ctx))


def write_rows(store: KeyValueStore, cells: Int32Array, rows: Sequence[Bytes]) -> None:
    """Write what `read_rows` gave, or the same of another store, into these cells; graphs lose their memory."""
    if not len(cells):
        return
    with Context(store.backend) as ctx:
        for span, new in zip(_spans(store, cells, ctx), rows, strict=True):
            # Cells of others may lie between.
            whole = span.read()
            whole[cells - span.begin] = new
            span.write(whole)


@dataclass(frozen=True, slots=True)
class _Span:
    """A run of cells from `begin` on, or all of them where they lie along the rows of the tensor."""

    tensor: Tensor
    begin: int
    n: int
    permuted: bool

    def read(self) -> Bytes:
        """uint8 [n, bytes of a row]."""
        raw = np.empty(self.tensor.nbytes, dtype=np.uint8)
        self.tensor.read_into(raw)
        if not self.permuted:
            return raw.reshape(self.n, -1)
        size = self.tensor.stride(0)
        return raw.reshape(-1, self.n, size).transpose(1, 0, 2).reshape(self.n, -1)

    def write(self, rows: Bytes) -> None:
        """What `read` gave, changed."""
        if self.permuted:
            rows = rows.reshape(self.n, -1, self.tensor.stride(0)).transpose(1, 0, 2)
        self.tensor.set_bytes(np.ascontiguousarray(rows).reshape(-1))


def _spans(store: KeyValueStore, cells: Int32Array, ctx: Context) -> Iterator[_Span]:
    """Keys and values of each layer in turn, from the first of the cells to the last."""
    begin, end = int(cells.min()), int(cells.max()) + 1
    spans = []
    for i, tensor in enumerate(store.tensors()):
        if i % 2 and store.config.permuted_values:
            spans.append(_Span(tensor, 0, store.n_cells, permuted=True))
            continue
        row = tensor.stride(1)
        view = ops.view(tensor, (tensor.dim(0), end - begin), (row,), begin * row, ctx=ctx)
        ctx.expand(view)
        spans.append(_Span(view, begin, end - begin, permuted=False))
    # Only then a view has an address.
    ctx.alloc()
    return iter(spans)
