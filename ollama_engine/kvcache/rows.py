"""Reads and writes the keys and values of one sequence as plain bytes. No step may be in flight.

A row is one token's keys, or values, of one layer as the cache stores them. Rows of values are the same bytes whether
the store keeps them permuted or not. Cells far from those of the sequence are not touched.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ollama_engine.input import Int32Array
from ollama_engine.kvcache.span import CellSpan
from ollama_engine.kvcache.store import KeyValueStore
from ollama_engine.ml import ops
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor

Bytes = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.integer[Any]]

PIECE = 256
"""Most cells that one graph copies, in every layer."""
SLICE = 48 << 10
"""Most bytes that a step waits for at once: some microseconds, and too few for a copy to release Python's lock."""
FEW = 8
"""Most cells that one graph copies while steps wait."""
NEAR = 32
"""A run may contain gaps of this many foreign cells: copying those is faster than starting another run."""
RUNS = 64
"""Most runs for one sequence, however scattered its cells are."""


@dataclass(frozen=True, slots=True, eq=False)
class SavedRows:
    """Keys and values of a sequence in layers of one kind: one entry per token, or per image."""

    positions: Int32Array
    """Positions [n], ascending. A window or chunk has dropped positions that no later token sees."""
    rows: tuple[Bytes, ...]
    """Keys and values of each layer in turn, uint8 [n, bytes of an entry]; empty where only positions are saved."""


Saving = Generator[None, None, list[SavedRows]]
"""Copies a piece each time that it is advanced, and returns what it has copied."""


def result_of(saving: Saving) -> list[SavedRows]:
    """What a copy returns, made to its end."""
    while True:
        try:
            next(saving)
        except StopIteration as end:
            copied: list[SavedRows] = end.value
            return copied


def row_bytes(store: KeyValueStore) -> tuple[int, ...]:
    """Bytes of a row: keys and values of each layer in turn."""
    return tuple(tensor.nbytes // store.n_cells for tensor in store.tensors())


def empty_rows(store: KeyValueStore, n: int) -> tuple[Bytes, ...]:
    """Room for `n` rows, uint8 [n, bytes of a row]."""
    return tables(n, row_bytes(store))


def tables(n: int, sizes: Sequence[int]) -> tuple[Bytes, ...]:
    """Room for `n` rows of each of these bytes, uint8 [n, bytes], in one allocation: many take a page fault each."""
    ends = [0, *accumulate(n * size for size in sizes)]
    room = np.empty(ends[-1], dtype=np.uint8)
    return tuple(room[begin:end].reshape(n, size) for (begin, end), size in zip(pairwise(ends), sizes, strict=True))


def read_rows(store: KeyValueStore, cells: Int32Array) -> tuple[Bytes, ...]:
    """The rows of these cells, uint8 [n, bytes of a row]."""
    rows = empty_rows(store, len(cells))
    for span, chosen, at in _parts(cells):
        for mine, block in zip(rows, _read(store, span), strict=True):
            mine[chosen] = block[at]
    return rows


def reading(store: KeyValueStore, cells: Int32Array, rows: Sequence[Bytes]) -> Iterator[None]:
    """Copy the rows of these cells into `rows`, uint8 [n, bytes of a row]: about SLICE bytes, or one row, at a time.

    Where a graph gathers values, the rows of FEW cells.
    """
    if store.permuted:
        for span, chosen, at in _parts(cells, FEW):
            for mine, block in zip(rows, _read(store, span), strict=True):
                mine[chosen] = block[at]
            yield
        return
    left = SLICE
    for tensor, mine in zip(store.tensors(), rows, strict=True):
        size = mine.shape[1]
        for begin, end in _runs(cells, max(1, SLICE // size)):
            # Straight into its place: NumPy's own copies release Python's lock, which then waits for who took it.
            tensor.read_part(int(cells[begin]) * size, mine[begin:end])
            left -= (end - begin) * size
            if left <= 0:
                left = SLICE
                yield


def write_rows(store: KeyValueStore, cells: Int32Array, rows: Sequence[Bytes]) -> None:
    """Write rows from `read_rows`, of any store, into these cells."""
    for span, chosen, at in _parts(cells):
        if np.array_equal(chosen, np.arange(chosen[0], chosen[0] + span.n)) and (np.diff(at) == 1).all():
            _write(store, span, [new[chosen[0] : chosen[0] + span.n] for new in rows])  # as they lie
            continue
        if len(at) == span.n:
            blocks = [np.empty((span.n, size), dtype=np.uint8) for size in row_bytes(store)]
        else:  # the span contains cells of other sequences: read it, change it, write it back
            blocks = _read(store, span)
        for block, new in zip(blocks, rows, strict=True):
            block[at] = new[chosen]
        _write(store, span, blocks)


def reserve_rows(store: KeyValueStore) -> None:
    """Take the memory for the graphs of reading and writing now. Raises NoMemoryError."""
    if not store.permuted:
        return  # without permuted values there are no graphs
    for build in (_reading, _writing):
        with Context(store.backend) as ctx:
            build(store, CellSpan(0, min(PIECE, store.n_cells)), ctx)
            ctx.reserve()


# -- which cells -------------------------------------------------------------------------------------------------------


def pieces(cells: Int32Array, most: int = PIECE) -> Iterator[CellSpan]:
    """Spans that hold all of these cells, and few others: none larger than `most`, in at most `RUNS` runs."""
    if not len(cells):
        return
    ordered = np.sort(cells)
    gaps = np.diff(ordered)
    apart = np.flatnonzero(gaps > NEAR)
    if len(apart) >= RUNS:
        apart = np.sort(apart[np.argsort(gaps[apart])[1 - RUNS :]])  # split at the widest gaps
    for run in np.split(ordered, apart + 1):
        end = int(run[-1]) + 1
        for begin in range(int(run[0]), end, most):
            yield CellSpan(begin, min(begin + most, end))


def _parts(cells: Int32Array, most: int = PIECE) -> Iterator[tuple[CellSpan, Indices, Indices]]:
    """The pieces that hold any of these cells, with the indices of those and their places within the span."""
    for span in pieces(cells, most):
        chosen = np.flatnonzero((cells >= span.begin) & (cells < span.end))
        if len(chosen):
            yield span, chosen, cells[chosen] - span.begin


def _runs(cells: Int32Array, most: int) -> Iterator[tuple[int, int]]:
    """The begin and end of each part of `cells` that lies in a row in the cache, none longer than `most`."""
    ends = np.flatnonzero(np.diff(cells) != 1) + 1
    for first, behind in pairwise([0, *ends.tolist(), len(cells)]):
        for begin in range(first, behind, most):
            yield begin, min(begin + most, behind)


# -- a span of all layers ----------------------------------------------------------------------------------------------


def _read(store: KeyValueStore, span: CellSpan) -> list[Bytes]:
    """Keys and values of each layer in turn, uint8 [span.n, bytes of a row]."""
    if not store.permuted:
        return [_read_part(tensor, span, size) for tensor, size in zip(store.tensors(), row_bytes(store), strict=True)]
    with Context(store.backend) as ctx:
        tensors = _reading(store, span, ctx)
        ctx.alloc()  # only then a view has an address
        ctx.compute()
        turned = _permuted(store)
        return [_bytes_of(tensor, span, permuted=i in turned) for i, tensor in enumerate(tensors)]


def _read_part(tensor: Tensor, span: CellSpan, size: int) -> Bytes:
    block = np.empty((span.n, size), dtype=np.uint8)
    tensor.read_part(span.begin * size, block)
    return block


def _reading(store: KeyValueStore, span: CellSpan, ctx: Context) -> list[Tensor]:
    """The tensors of the span: views, except that permuted values are gathered."""
    tensors = _rows_of(store, span, ctx)
    for i in _permuted(store):
        tensors[i] = ops.cont(tensors[i])
        ctx.forward(tensors[i])
    ctx.expand(*tensors)
    return tensors


def _bytes_of(tensor: Tensor, span: CellSpan, *, permuted: bool) -> Bytes:
    raw = np.empty(tensor.nbytes, dtype=np.uint8)
    tensor.read_into(raw)
    if not permuted:
        return raw.reshape(span.n, -1)
    return np.ascontiguousarray(raw.reshape(tensor.dim(1), span.n, -1).swapaxes(0, 1)).reshape(span.n, -1)


def _write(store: KeyValueStore, span: CellSpan, blocks: Sequence[Bytes]) -> None:
    """Write what `_read` gave, changed."""
    if not store.permuted:
        for tensor, block in zip(store.tensors(), blocks, strict=True):
            tensor.set_part(span.begin * block.shape[1], np.ascontiguousarray(block))
        return
    with Context(store.backend) as ctx:
        into, turned = _writing(store, span, ctx), _permuted(store)
        ctx.alloc()
        for i, (tensor, block) in enumerate(zip(into, blocks, strict=True)):
            ordered = block
            if i in turned:
                ordered = block.reshape(span.n, tensor.dim(1), -1).swapaxes(0, 1)
            tensor.set_bytes(np.ascontiguousarray(ordered).reshape(-1))
        ctx.compute()


def _writing(store: KeyValueStore, span: CellSpan, ctx: Context) -> list[Tensor]:
    """The tensors to write a span through: views, except that permuted values are inputs that the graph scatters."""
    into = _rows_of(store, span, ctx)
    for i in _permuted(store):
        given = ctx.input(into[i].dtype, into[i].shape)
        ctx.expand(ops.copy(given, into[i]))
        into[i] = given
    ctx.expand(*into)
    return into


def _permuted(store: KeyValueStore) -> list[int]:
    """The numbers of those of the store's tensors whose cells lie along their rows."""
    return [i for i, tensor in enumerate(store.tensors()) if store.is_permuted(tensor)]


def _rows_of(store: KeyValueStore, span: CellSpan, ctx: Context) -> list[Tensor]:
    """The part of each tensor for a span: [row, cells], or [cells, row] where it is permuted."""

    def part(tensor: Tensor) -> Tensor:
        step = tensor.stride(1)
        if store.is_permuted(tensor):
            return ops.view(tensor, (span.n, tensor.dim(1)), (step,), span.begin * tensor.stride(0), ctx=ctx)
        return ops.view(tensor, (tensor.dim(0), span.n), (step,), span.begin * step, ctx=ctx)

    return [part(tensor) for tensor in store.tensors()]
