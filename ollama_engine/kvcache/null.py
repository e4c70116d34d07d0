"""Null cache: stores nothing. For embeddings: all tokens of a text are in one batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ollama_engine.errors import NoMemoryError, Option
from ollama_engine.input import Batch, Int32Array
from ollama_engine.kvcache.base import GraphInputs, KVIndices
from ollama_engine.kvcache.mask import mask_bytes
from ollama_engine.kvcache.visibility import Visibility
from ollama_engine.ml import ops
from ollama_engine.ml.device.hostmem import available_bytes
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor

_CHECKED_FROM = 1 << 26
"""Masks of at least this many bytes are compared with the available memory. Asking takes as long as a small batch."""

_AT_ONCE = 1 << 20
"""Entries of a mask computed at once, so that temporary arrays take a few MiB."""

PARTS = (64, 128, 256)
"""Part sizes to try. A tile of ggml's flash attention is 64 rows, and smaller parts are slower."""

Float16Array = npt.NDArray[np.float16]


def mask_of(batch: Batch, window: int | None, causal: Visibility | None) -> Float16Array:
    """0 where a row of a batch attends to another one, minus infinity elsewhere, [n, n]; see `NullCache`.

    Raises NoMemoryError.
    """
    n = len(batch)
    try:
        mask = np.full((n, n), -np.inf, dtype=np.float16)
        if window is None and causal is None and n * n <= _AT_ONCE:
            mask[batch.sequences[:, None] == batch.sequences] = 0
            return mask
        for sequence in np.flatnonzero(np.bincount(batch.sequences)):
            rows = np.flatnonzero(batch.sequences == sequence)
            for some in np.array_split(rows, -(-(len(rows) ** 2) // _AT_ONCE)):
                _fill(mask, batch.positions, some, rows, window, causal)
    except MemoryError:
        raise _no_memory(n) from None
    return mask


def part_of(batch: Batch) -> int:
    """The smallest size in PARTS that splits a batch without splitting a sequence; all rows if there is none.

    No part attends to another, so attention over p parts costs 1/p of attention over the whole batch.
    """
    n = len(batch)
    n_sequences = None
    for size in PARTS:
        if size < n and n % size == 0:
            n_sequences = _distinct(batch.sequences) if n_sequences is None else n_sequences
            n_parts = n // size
            if _distinct(batch.sequences * n_parts + np.arange(n) // size) == n_sequences:
                return size
    return n


def _distinct(numbers: npt.NDArray[np.signedinteger[Any]]) -> int:
    """Number of distinct values. Not `numpy.unique`: it imports a module, and the engine thread never imports."""
    return int(np.count_nonzero(np.bincount(numbers)))


def masks_of(batch: Batch, size: int, window: int | None, causal: Visibility | None) -> Float16Array:
    """The masks of parts of `size` rows, [parts, 1, size, size]; as `mask_of`."""
    if size == len(batch):
        return mask_of(batch, window, causal)[None, None]
    parts = (slice(begin, begin + size) for begin in range(0, len(batch), size))
    return np.stack([
        mask_of(Batch(batch.tokens[p], batch.positions[p], batch.sequences[p], batch.outputs[:0]), window, causal)
        for p in parts
    ])[:, None]  # fmt: skip


def _fill(
    mask: Float16Array, positions: Int32Array, some: npt.NDArray[np.intp], rows: npt.NDArray[np.intp],
    window: int | None, causal: Visibility | None,
) -> None:  # fmt: skip
    """Write the mask of the rows `some` of a sequence over all of its `rows`."""
    here, there = positions[some][:, None], positions[rows][None, :]
    unseen = np.zeros((len(some), len(rows)), dtype=np.bool_)
    if causal is not None:
        unseen |= (there > here) | (there < causal.first(positions[some])[:, None])
    if window is not None:
        unseen |= np.abs(there - here) > window // 2
    if rows[-1] - rows[0] == len(rows) - 1:  # contiguous, as the embedder's are
        block = mask[some[0] : some[-1] + 1, rows[0] : rows[-1] + 1]
        block[...] = 0
        block[unseen] = -np.inf
    else:
        mask[np.ix_(some, rows)] = np.where(unseen, np.float16(-np.inf), np.float16(0))


def _require_memory(n_tokens: int) -> None:
    """Raise NoMemoryError unless memory for the mask, and for a copy to write it from, is available."""
    needed = mask_bytes(n_tokens, n_tokens)
    if needed >= _CHECKED_FROM and 2 * needed > available_bytes():
        raise _no_memory(n_tokens)


def _no_memory(n_tokens: int) -> NoMemoryError:
    return NoMemoryError(
        f"the mask of {n_tokens} tokens in one batch takes twice {mask_bytes(n_tokens, n_tokens) >> 20} MiB, more than "
        "is free",
        advice=["give shorter texts", ("lower ", Option("num_ctx"), " and ", Option("batch_size"))],
    )


@dataclass(slots=True)
class _Graph:
    mask: Tensor | None = None
    layer: int = 0
    put: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Keys and values of each layer so far; later ones may attend to them, too."""


class NullCache:
    """Every token attends to all tokens of its sequence in its batch, earlier and later.

    With a `window` W, only to those up to W // 2 away on either side (ModernBERT). With `causal`, a token attends to
    the same tokens as in a causal cache.
    """

    def __init__(self, *, flash_attention: bool, window: int | None = None, causal: Visibility | None = None) -> None:
        # -- configuration --
        self._flash_attention = flash_attention
        self._window = window
        self._causal = causal
        # -- current batch --
        self._batch: Batch | None = None
        self._n_tokens = 0
        self._part = 0
        # -- current graph --
        self._graph: _Graph | None = None

    # ** used by the executor ******************************************************************************************

    def begin(self, batch: Batch) -> None:
        """Take note of the batch. Raises NoMemoryError where its mask would not fit."""
        _require_memory(len(batch))
        self._batch = batch
        self._n_tokens = len(batch)
        self._part = part_of(batch) if self._flash_attention else self._n_tokens

    def roll_back(self, batch: Batch) -> None:
        """Does nothing: this cache stores no tokens that a failed step could leave behind."""

    def worst_cases(self, n_tokens: int) -> Iterator[None]:
        """Prepare for building a graph of `n_tokens` tokens. Raises NoMemoryError where its mask would not fit."""
        _require_memory(n_tokens)
        self._batch = None
        self._n_tokens = self._part = n_tokens
        yield

    @property
    def shape_key(self) -> tuple[int, ...]:
        """Number of tokens in the batch and in a part."""
        return (self._n_tokens, self._part)

    def build_inputs(self, ctx: Context) -> GraphInputs:
        """Make the mask f16 [part, part, 1, parts]."""
        mask = ctx.input("f16", (self._part, self._part, 1, self._parts), name="mask")
        self._start_graph(mask)
        return GraphInputs((mask,), partial(self._write, mask))

    def _write(self, mask: Tensor) -> None:
        assert self._batch is not None
        mask.set(masks_of(self._batch, self._part, self._window, self._causal))

    def _start_graph(self, mask: Tensor | None = None) -> None:
        self._graph = _Graph(mask)

    @property
    def _parts(self) -> int:
        return self._n_tokens // self._part

    # ** used by models ************************************************************************************************

    rotation = 0

    @property
    def flash_attention(self) -> bool:
        return self._flash_attention

    def set_layer(self, layer: int) -> None:
        if self._graph is not None:
            self._graph.layer = layer

    def put(self, key: Tensor, value: Tensor) -> None:
        """Hold keys [key_dim, kv_heads, n] and values [value_dim, kv_heads, n] of the layer."""
        assert self._graph is not None
        self._graph.put[self._graph.layer] = key, value

    def _held(self) -> tuple[Tensor, Tensor]:
        """Keys and values of the layer as they were put."""
        assert self._graph is not None
        if self._graph.layer not in self._graph.put:
            raise ValueError("put keys and values of this layer first: nothing is stored from batch to batch")
        return self._graph.put[self._graph.layer]

    def get(self) -> tuple[Tensor, Tensor, Tensor | KVIndices]:
        """Keys [key_dim, part, kv_heads, parts], values, and the mask f16 [part, part, 1, parts]."""
        key, value = self._held()
        assert self._graph is not None
        assert self._graph.mask is not None
        if self._parts > 1:
            key, value = self._in_parts(key), self._in_parts(value)
        keys = ops.permute(key, 0, 2, 1, 3)
        values = ops.permute(value, 0, 2, 1, 3) if self._flash_attention else ops.cont(ops.permute(value, 1, 2, 0, 3))
        return keys, values, self._graph.mask

    def _in_parts(self, x: Tensor) -> Tensor:
        """[dim, heads, n] -> [dim, heads, part, parts]."""
        return ops.reshape(x, x.dim(0), x.dim(1), self._part, self._parts)
