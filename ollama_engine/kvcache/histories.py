"""Histories: the ways to attention over the cells of one cache, and the one that a batch takes.

PagedHistory      on CPUs that our own kernel is fast on, all graphs: KV indices
GatheredHistory   on other CPUs, many rows: a dense copy of the keys and values that the batch reads, and a mask
MaskedHistory     all other graphs: a mask over a run of cells
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ollama_engine.input import Batch
from ollama_engine.kvcache.cells import Cells
from ollama_engine.kvcache.gathered import GatheredHistory, GatheredInputs
from ollama_engine.kvcache.mask import MaskBuffer
from ollama_engine.kvcache.masked import MaskedHistory, MaskedInputs
from ollama_engine.kvcache.paged import PagedHistory, PagedInputs
from ollama_engine.kvcache.store import KeyValueStore
from ollama_engine.kvcache.visibility import Visibility
from ollama_engine.ml.graph.context import Context

__all__ = ["Histories", "HistoryInputs", "round_up"]

HistoryInputs = MaskedInputs | PagedInputs | GatheredInputs


class Histories:
    """The ways over `cells`, whose keys and values are in `store`, for the steps of one executor."""

    def __init__(self, cells: Cells, store: KeyValueStore, visibility: Visibility) -> None:
        self._cells = cells
        self._visibility = visibility
        self._buffer = MaskBuffer()
        self._pages = store.paged
        config = store.config
        self._gathered_rows = config.gathered_rows if store.suits_gathering else None
        n_cells, padding = len(cells), config.history_padding
        self._masked = MaskedHistory(n_cells, padding, self._buffer)
        self._paged = PagedHistory(n_cells, config.sequences, self._buffer, limited=visibility.limited)
        # Half of the cells, since they are gathered as f32: that takes as much memory as one layer of f16.
        self._gathered = GatheredHistory(round_up(n_cells // 2, padding), padding, self._buffer)
        self._current: MaskedHistory | PagedHistory | GatheredHistory = self._masked

    def begin(self, batch: Batch) -> None:
        """Choose the way of a batch."""
        self._current = next(history for history in self._ways(len(batch)) if self._suits(history, batch))
        self._current.begin(self._cells, batch)

    def _ways(self, n_tokens: int) -> Sequence[MaskedHistory | PagedHistory | GatheredHistory]:
        """The ways that a graph of `n_tokens` rows may take, the preferred one first."""
        if self._pages:
            return (self._paged,)
        gathers = self._gathered_rows is not None and n_tokens >= self._gathered_rows
        return (self._gathered, self._masked) if gathers else (self._masked,)

    def _suits(self, history: MaskedHistory | PagedHistory | GatheredHistory, batch: Batch) -> bool:
        return history is not self._gathered or self._cells.n_indices(batch.sequences) <= self._gathered.most

    def worst_cases(self, n_tokens: int) -> Iterator[None]:
        """Prepare in turn for each worst-case graph of `n_tokens` tokens."""
        for history in reversed(self._ways(n_tokens)):  # the largest masks first
            self._current = history
            history.begin_reserve(n_tokens)
            yield

    @property
    def shape_key(self) -> tuple[int, ...]:
        """Number of tokens, and the room for indices or gathered cells, or the run of cells under the mask."""
        return self._current.shape_key

    def build_inputs(self, ctx: Context) -> HistoryInputs:
        """Make the inputs of a new graph: what the batch's rows see."""
        return self._current.build_inputs(ctx)

    def write(self, seen: HistoryInputs, batch: Batch) -> None:
        """Write what the rows of a batch see, in the graph that `seen` was made for."""
        first, last = self._visibility.first(batch.positions), self._visibility.last(batch)
        if isinstance(seen, PagedInputs):
            seen.write(self._cells, batch.sequences, first, last, batch.outputs)
        else:
            seen.write(self._cells, batch.sequences, first, last)

    @property
    def nbytes(self) -> int:
        """Host memory for making masks and indices."""
        return self._buffer.nbytes


def round_up(n: int, multiple: int) -> int:
    """The lowest multiple that is not less than `n`."""
    return -(-n // multiple) * multiple
