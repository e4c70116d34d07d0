"""Paged null cache: KV indices instead of a mask, for embeddings that attend with `ops.paged_attention`.

A token's row of the graph is its cell. Attention visits what a text's rows see and nothing else, whatever other texts
are in the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ollama_engine.errors import NoMemoryError, Option
from ollama_engine.input import Batch, Int32Array
from ollama_engine.kvcache.base import GraphInputs, KVIndices
from ollama_engine.kvcache.null import NullCache
from ollama_engine.kvcache.paged import suits_paging
from ollama_engine.kvcache.visibility import Visibility
from ollama_engine.ml import ops
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor

MOST_ROWS = 1 << 20
"""Attention to a text of so many would take hours, and its graph tens of GiB."""


def lists_rows(backend: Backend) -> bool:
    """Whether texts to embed take KV indices: where all devices are a CPU that our kernel is fast on."""
    return suits_paging(backend, range(len(backend.devices)), "f32")


def indices_of(
    batch: Batch, window: int | None, causal: Visibility | None
) -> tuple[Int32Array, Int32Array, Int32Array]:
    """Rows in the order of sequences and positions, [n]; of these, the part that each row sees, [n, 2]; phases, [n].

    Who sees whom: see `NullCache`.
    """
    positions = batch.positions.astype(np.int64)
    if causal is not None:
        first, last = np.maximum(causal.first(batch.positions), 0).astype(np.int64), positions
    elif window is not None:
        first, last = np.maximum(positions - window // 2, 0), positions + window // 2
    else:
        first, last = np.zeros_like(positions), np.full_like(positions, 2**31 - 1)
    begins = batch.sequences.astype(np.int64) << 32  # of the numbers by which rows are in order
    order = np.argsort(begins + positions, kind="stable")
    numbers = (begins + positions)[order]
    ranges = np.stack([np.searchsorted(numbers, begins + first), np.searchsorted(numbers, begins + last, "right")], 1)
    return order.astype(np.int32), ranges.astype(np.int32), first.astype(np.int32)


class PagedNullCache(NullCache):
    """As NullCache. Phases are inputs where a window or a chunk limits what rows see."""

    def __init__(self, *, flash_attention: bool, window: int | None = None, causal: Visibility | None = None) -> None:
        super().__init__(flash_attention=flash_attention, window=window, causal=causal)
        self._limited = window is not None or causal not in (None, Visibility())
        self._lists: _Lists | None = None

    # ** used by the executor ******************************************************************************************

    def begin(self, batch: Batch) -> None:
        """Take note of the batch. Raises NoMemoryError where it is longer than any machine can compute."""
        _require_few(len(batch))
        self._batch = batch
        self._n_tokens = self._part = len(batch)

    def worst_cases(self, n_tokens: int) -> Iterator[None]:
        """Prepare for building a graph of `n_tokens` tokens. Raises NoMemoryError as `begin` does."""
        _require_few(n_tokens)
        self._batch = None
        self._n_tokens = self._part = n_tokens
        yield

    def build_inputs(self, ctx: Context) -> GraphInputs:
        """Make the indices i32 [tokens], each row's range of them i32 [2, tokens], and phases."""
        self._start_graph()
        self._lists = lists = _Lists(ctx, self._n_tokens, limited=self._limited)
        return GraphInputs(lists.seen, partial(self._write_lists, lists))

    def _write_lists(self, lists: _Lists) -> None:
        assert self._batch is not None
        lists.write(*indices_of(self._batch, self._window, self._causal), self._batch.outputs)

    # ** used by models ************************************************************************************************

    def get(self) -> tuple[Tensor, Tensor, KVIndices]:
        """Keys [key_dim, n, kv_heads], values [value_dim, n, kv_heads], and the indices."""
        assert self._lists is not None
        key, value = self._held()
        return ops.permute(key, 0, 2, 1, 3), ops.permute(value, 0, 2, 1, 3), self._lists.rows

    def output_indices(self, n: int) -> KVIndices:
        """Inputs of the same graph for its `n` outputs alone."""
        assert self._lists is not None
        return self._lists.of_outputs(n)


class _Lists:
    """The KV indices of one graph."""

    def __init__(self, ctx: Context, n_tokens: int, *, limited: bool) -> None:
        self._ctx, self._limited = ctx, limited
        self.rows = self._make(n_tokens, ctx.input("i32", (n_tokens,), name="kv_indices"), "kv")
        self._outputs: KVIndices | None = None
        phases = () if self.rows.phases is None else (self.rows.phases,)
        self.seen = (self.rows.ranges, self.rows.indices, *phases)

    def _make(self, n: int, indices: Tensor, name: str) -> KVIndices:
        ranges = self._ctx.input("i32", (2, n), name=f"{name}_ranges")
        phases = self._ctx.input("i32", (n,), name=f"{name}_phases") if self._limited else None
        return KVIndices(ranges=ranges, indices=indices, phases=phases)

    def of_outputs(self, n: int) -> KVIndices:
        if self._outputs is None:
            self._outputs = self._make(n, self.rows.indices, "kv_output")
        return self._outputs

    def write(self, indices: Int32Array, ranges: Int32Array, phases: Int32Array, outputs: Int32Array) -> None:
        self.rows.indices.set(indices)
        _write(self.rows, ranges, phases)
        if self._outputs is not None:
            _write(self._outputs, ranges[outputs], phases[outputs])


def _require_few(n_tokens: int) -> None:
    if n_tokens > MOST_ROWS:
        raise NoMemoryError(
            f"{n_tokens} tokens are to be in one batch, which has {MOST_ROWS} at most",
            advice=["give shorter texts", ("lower ", Option("num_ctx"), " and ", Option("batch_size"))],
        )


def _write(inputs: KVIndices, ranges: Int32Array, phases: Int32Array) -> None:
    inputs.ranges.set(ranges)
    if inputs.phases is not None:
        inputs.phases.set(phases)
