"""What rows attend to gathered from their cells, and a mask over that: for graphs of many rows.

Cells of sequences that decode side by side take turns, so a mask over the run of cells from the lowest to the highest
is mostly of other sequences' cells, and attention pays for them. Here a graph first copies the keys and values of its
own sequences, as f32 and in the order of positions. That costs next to nothing beside attention over many rows, and
the kernel for many rows takes them whatever type the cache stores.
"""

from __future__ import annotations

from ollama_engine.input import Batch, Int32Array
from ollama_engine.kvcache.cells import Cells
from ollama_engine.kvcache.mask import MaskBuffer
from ollama_engine.kvcache.span import CellSpan, SpanPolicy, is_decoding
from ollama_engine.kvcache.store import KeyValueStore
from ollama_engine.ml.context import Context
from ollama_engine.ml.tensor import Tensor


class GatheredHistory:
    """For batches whose sequences have up to `most` cells in all; room for them comes in multiples of `padding`.

    Masks are made in `buffer`.
    """

    def __init__(self, most: int, padding: int, buffer: MaskBuffer) -> None:
        self.most = most
        self._rooms = SpanPolicy(most, padding)
        self._buffer = buffer
        # -- current batch --
        self._n_tokens = 0
        self._room = CellSpan(0, 0)
        # -- current graph --
        self._indices: Tensor | None = None
        self._mask: Tensor | None = None

    def begin(self, cells: Cells, batch: Batch) -> None:
        """Choose how many cells there is room for."""
        needed = CellSpan(0, cells.n_indices(batch.sequences))
        decoding = is_decoding(batch.sequences)
        self._room = self._rooms.choose(needed, len(batch), decoding=decoding, before=self._room)
        self._n_tokens = len(batch)

    def begin_reserve(self, n_tokens: int) -> None:
        """Choose the most, and take the memory for the mask of as many rows. Raises NoMemoryError."""
        self._n_tokens = n_tokens
        self._room = self._rooms.whole()
        self._buffer.reserve(n_tokens, self._room.n)

    @property
    def shape_key(self) -> tuple[int, ...]:
        """Number of tokens, and the room for the cells that they read."""
        return (self._n_tokens, self._room.n)

    def build_inputs(self, ctx: Context) -> tuple[Tensor, ...]:
        """Make the inputs of a new graph: the cells i32 [room], and the mask f16 [room, tokens]."""
        self._indices = ctx.input("i32", (self._room.n,), name="gathered_cells")
        self._mask = ctx.input("f16", (self._room.n, self._n_tokens), name="mask")
        return self._indices, self._mask

    def write_inputs(self, cells: Cells, sequences: Int32Array, first: Int32Array, last: Int32Array) -> None:
        """Write them: each row sees its sequence's positions from `first` to `last`."""
        assert self._indices is not None
        assert self._mask is not None
        indices, mask = self._buffer.fill_gathered(cells, self._room.n, sequences, first, last)
        self._indices.set(indices)
        self._mask.set(mask)

    def get(self, store: KeyValueStore, layer: int, ctx: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values of these cells, f32, and the mask."""
        assert self._indices is not None
        assert self._mask is not None
        return *store.gather(layer, self._indices), self._mask
