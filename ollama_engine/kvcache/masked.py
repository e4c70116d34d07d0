"""Masked history: a mask over a run of cells, for graphs that neither page nor gather (GPUs, plain attention)."""

from __future__ import annotations

from ollama_engine.input import Batch, Int32Array
from ollama_engine.kvcache.cells import Cells
from ollama_engine.kvcache.mask import MaskBuffer
from ollama_engine.kvcache.span import CellSpan, SpanPolicy, is_decoding
from ollama_engine.kvcache.store import KeyValueStore
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor


class MaskedHistory:
    """For a cache of `n_cells` cells. Attention reads a run of them that begins and ends at multiples of `padding`.

    Masks are made in `buffer`.
    """

    def __init__(self, n_cells: int, padding: int, buffer: MaskBuffer) -> None:
        self._spans = SpanPolicy(n_cells, padding)
        self._masks = buffer
        # -- current batch --
        self._n_tokens = 0
        self._span = CellSpan(0, 0)

    def begin(self, cells: Cells, batch: Batch) -> None:
        """Choose the run of cells for this batch."""
        needed, decoding = CellSpan(*cells.span(batch.sequences)), is_decoding(batch.sequences)
        self._span = self._spans.choose(needed, len(batch), decoding=decoding, before=self._span)
        self._n_tokens = len(batch)

    def begin_reserve(self, n_tokens: int) -> None:
        """Choose all cells, and take the memory for the mask of `n_tokens` rows. Raises NoMemoryError."""
        self._n_tokens = n_tokens
        self._span = self._spans.whole()
        self._masks.reserve(n_tokens, self._span.n)

    @property
    def shape_key(self) -> tuple[int, ...]:
        """Number of tokens, and the run of cells [begin, end) that attention reads."""
        return (self._n_tokens, *self._span)

    def build_inputs(self, ctx: Context) -> MaskedInputs:
        """Make the mask f16 [history, tokens] of a new graph."""
        return MaskedInputs(ctx.input("f16", (self._span.n, self._n_tokens), name="mask"), self._span, self._masks)


class MaskedInputs:
    """The mask of one graph over a run of cells, made in `buffer`."""

    def __init__(self, mask: Tensor, span: CellSpan, buffer: MaskBuffer) -> None:
        self._mask, self._span, self._buffer = mask, span, buffer
        self.seen = (mask,)

    def write(self, cells: Cells, sequences: Int32Array, first: Int32Array, last: Int32Array) -> None:
        """Write the mask: each row sees its sequence's positions from `first` to `last`."""
        self._mask.set(self._buffer.fill(cells, self._span, sequences, first, last))

    def get(self, store: KeyValueStore, layer: int, ctx: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values of the run, and the mask."""
        return *store.history(layer, *self._span, ctx), self._mask
