"""Paged history: KV indices instead of a mask, for graphs that attend with `ops.paged_attention`.

A mask has an entry for each row and each cell of all sequences, and attention visits every entry for every head. KV
indices name only the cells that a row sees, in the order of positions, so a row's result does not depend on where its
cells lie. The graph reads keys and values of the whole cache, so it does not change with the cells that are read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ollama_engine.input import Batch, Int32Array
from ollama_engine.kvcache.base import KVIndices
from ollama_engine.kvcache.cells import Cells
from ollama_engine.kvcache.mask import MaskBuffer
from ollama_engine.kvcache.store import KeyValueStore
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.ops.paged import paged_attention_chosen
from ollama_engine.ml.weights.kernel_choice import kernels_of


def suits_paging(backend: Backend, devices: Sequence[int], dtype: str) -> bool:
    """Whether all attention to layers on these devices, with keys of this type, uses `ops.paged_attention`.

    It does on a CPU that our kernel is fast on, with flash attention on or off: the kernel sums as precisely as the two
    products that stand for "off". So a row's result is the same for any number of rows.
    """
    on_cpu = all(backend.devices[device].kind == "cpu" for device in devices)
    return kernels_of(backend).attention and on_cpu and paged_attention_chosen(dtype)


LEAST_ROOM = 1024
"""Smallest room for indices."""


def choose_room(needed: int, most: int, before: int) -> int:
    """Room for `needed` indices. A graph is reused while the room stays; `before` is that of the previous step.

    Spare room costs memory and some copying, but no attention. So the room is a power of two, and shrinks only when a
    quarter of it would do.
    """
    least = max(needed, LEAST_ROOM)
    if needed <= before <= 4 * least:
        return min(before, most)
    return min(1 << (least - 1).bit_length(), most)


MOST_LISTS = 64
"""Sequences that may all share all cells. With more of them, the room assumes that each has cells of its own."""


class PagedHistory:
    """For a cache of `n_cells` cells and batches of up to `n_sequences` sequences. Indices are made in `buffer`.

    `limited`: rows may see later positions than 0 only (a window or chunk).
    """

    def __init__(self, n_cells: int, n_sequences: int, buffer: MaskBuffer, *, limited: bool) -> None:
        self._limited = limited
        self._n_cells = n_cells
        self._n_lists = min(n_sequences, MOST_LISTS)
        self._buffer = buffer
        # -- current batch --
        self._n_tokens = 0
        self._room = 0

    def begin(self, cells: Cells, batch: Batch) -> None:
        """Choose the room for this batch's indices."""
        self._n_tokens = len(batch)
        needed = cells.n_indices(batch.sequences)
        self._room = choose_room(needed, max(needed, self.most(len(batch))), self._room)

    def most(self, n_tokens: int) -> int:
        """Most indices of a batch: rows of one sequence share their list, and all sequences may share all cells."""
        return min(n_tokens, self._n_lists) * self._n_cells

    def begin_reserve(self, n_tokens: int) -> None:
        """Choose the most indices, and take the memory in which those of as many rows are made.

        Only sequences that share their cells fill more of it than the cache has cells. Raises NoMemoryError.
        """
        self._n_tokens = n_tokens
        self._room = self.most(n_tokens)
        self._buffer.reserve_indices(self._room)

    @property
    def shape_key(self) -> tuple[int, ...]:
        """Number of tokens, and the room for their indices."""
        return (self._n_tokens, self._room)

    def build_inputs(self, ctx: Context) -> PagedInputs:
        """Make the inputs of a new graph: the indices i32 [room], each row's range of them i32 [2, tokens], phases."""
        rows = KVIndices(
            ranges=ctx.input("i32", (2, self._n_tokens), name="kv_ranges"),
            indices=ctx.input("i32", (self._room,), name="kv_indices"),
            phases=ctx.input("i32", (self._n_tokens,), name="kv_phases") if self._limited else None,
        )
        return PagedInputs(rows, self._n_cells, self._buffer)


class PagedInputs:
    """The KV indices of one graph over a cache of `n_cells` cells, made in `buffer`."""

    def __init__(self, rows: KVIndices, n_cells: int, buffer: MaskBuffer) -> None:
        self._rows, self._n_cells, self._buffer = rows, n_cells, buffer
        self._outputs: KVIndices | None = None
        self.seen = (rows.ranges, rows.indices, *(() if rows.phases is None else (rows.phases,)))

    def output_indices(self, n: int, ctx: Context) -> KVIndices:
        """Inputs of the same graph for its `n` outputs alone."""
        if self._outputs is None:
            self._outputs = KVIndices(
                ranges=ctx.input("i32", (2, n), name="kv_output_ranges"),
                indices=self._rows.indices,
                phases=None if self._rows.phases is None else ctx.input("i32", (n,), name="kv_output_phases"),
            )
        return self._outputs

    def write(
        self, cells: Cells, sequences: Int32Array, first: Int32Array, last: Int32Array, outputs: Int32Array
    ) -> None:
        """Write the indices: each row sees its sequence's positions from `first` to `last`.

        Those of the rows `outputs` too, where the graph reads them.
        """
        ranges, indices = self._buffer.fill_indices(cells, self._rows.indices.dim(0), sequences, first, last)
        self._rows.indices.set(indices)
        _write(self._rows, ranges, first)
        if self._outputs is not None:
            _write(self._outputs, ranges[outputs], first[outputs])

    def get(self, store: KeyValueStore, layer: int, ctx: Context) -> tuple[Tensor, Tensor, KVIndices]:
        """Keys and values of all cells, and the indices."""
        return *store.history(layer, 0, self._n_cells, ctx), self._rows


def _write(inputs: KVIndices, ranges: Int32Array, first: Int32Array) -> None:
    inputs.ranges.set(ranges)
    if inputs.phases is not None:
        inputs.phases.set(np.maximum(first, 0))
