"""Gathered history: for graphs of many rows, a dense copy of the keys and values that the batch reads, and a mask.

Sequences that decode together have interleaved cells. A mask over the run from the lowest to the highest cell would
cover mostly other sequences' cells, and attention would pay for them. So the graph first copies the keys and values of
its own sequences, as f32 and in the order of positions. Beside attention over many rows the copy costs almost nothing,
and ggml's tiled kernel takes f32, whatever type the cache stores.
"""

from __future__ import annotations

from ollama_engine.input import Batch, Int32Array
from ollama_engine.kvcache.cells import Cells
from ollama_engine.kvcache.mask import MaskBuffer
from ollama_engine.kvcache.span import CellSpan, SpanPolicy, is_decoding
from ollama_engine.kvcache.store import KeyValueStore
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor


class GatheredHistory:
    """For batches whose sequences have up to `most` cells together, padded to a multiple of `padding`.

    Masks are made in `buffer`.
    """

    def __init__(self, most: int, padding: int, buffer: MaskBuffer) -> None:
        self.most = most
        self._rooms = SpanPolicy(most, padding)
        self._buffer = buffer
        # -- current batch --
        self._n_tokens = 0
        self._room = CellSpan(0, 0)

    def begin(self, cells: Cells, batch: Batch) -> None:
        """Choose the padded number of cells for this batch."""
        needed = CellSpan(0, cells.n_indices(batch.sequences))
        decoding = is_decoding(batch.sequences)
        self._room = self._rooms.choose(needed, len(batch), decoding=decoding, before=self._room)
        self._n_tokens = len(batch)

    def begin_reserve(self, n_tokens: int) -> None:
        """Choose the largest number of cells, and take the memory for `n_tokens` rows' mask. Raises NoMemoryError."""
        self._n_tokens = n_tokens
        self._room = self._rooms.whole()
        self._buffer.reserve(n_tokens, self._room.n)

    @property
    def shape_key(self) -> tuple[int, ...]:
        """Number of tokens, and the padded number of cells that they read."""
        return (self._n_tokens, self._room.n)

    def build_inputs(self, ctx: Context) -> GatheredInputs:
        """Make the inputs of a new graph: the cells i32 [room], and the mask f16 [room, tokens]."""
        indices = ctx.input("i32", (self._room.n,), name="gathered_cells")
        return GatheredInputs(indices, ctx.input("f16", (self._room.n, self._n_tokens), name="mask"), self._buffer)


class GatheredInputs:
    """The cells that one graph gathers, and the mask over them, made in `buffer`."""

    def __init__(self, indices: Tensor, mask: Tensor, buffer: MaskBuffer) -> None:
        self._indices, self._mask, self._buffer = indices, mask, buffer
        self.seen = (indices, mask)

    def write(self, cells: Cells, sequences: Int32Array, first: Int32Array, last: Int32Array) -> None:
        """Write both: each row sees its sequence's positions from `first` to `last`."""
        indices, mask = self._buffer.fill_gathered(cells, self._indices.dim(0), sequences, first, last)
        self._indices.set(indices)
        self._mask.set(mask)

    def get(self, store: KeyValueStore, layer: int, ctx: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values of these cells, f32, and the mask."""
        return *store.gather(layer, self._indices), self._mask
