"""Readers: what a causal cache holds, for layers that have queries only. They store nothing, and take no cells."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ollama_engine.input import Batch
from ollama_engine.kvcache.base import GraphInputs, KVIndices
from ollama_engine.kvcache.cells import Cells
from ollama_engine.kvcache.histories import Histories, HistoryInputs
from ollama_engine.kvcache.paged import PagedInputs
from ollama_engine.kvcache.store import KeyValueStore
from ollama_engine.kvcache.visibility import Visibility
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor

__all__ = ["CausalReader"]


class CausalReader:
    """Reads `cells`, whose keys and values are in `store`, for one executor. See `StepCache`.

    A row sees what the token at its position sees, which is stored.
    """

    def __init__(self, cells: Cells, store: KeyValueStore, visibility: Visibility) -> None:
        self._store = store
        self._histories = Histories(cells, store, visibility)
        self._batch: Batch | None = None
        # -- current graph --
        self._layer = 0
        self._ctx: Context | None = None
        self._seen: HistoryInputs | None = None

    # ** used by models ************************************************************************************************

    @property
    def flash_attention(self) -> bool:
        return self._store.config.flash_attention

    @property
    def rotation(self) -> int:
        return self._store.rotations[self._layer]

    def set_layer(self, layer: int) -> None:
        self._layer = layer

    def put(self, key: Tensor, value: Tensor) -> None:
        """Raise TypeError: a model that reads another one's keys and values has none."""
        raise TypeError("a reader of a cache stores nothing")

    def get(self) -> tuple[Tensor, Tensor, Tensor | KVIndices]:
        """Keys [key_dim, history, kv_heads], values, and a mask or KV indices. See `LayerView.get`."""
        assert self._ctx is not None
        assert self._seen is not None
        return self._seen.get(self._store, self._layer, self._ctx)

    def output_indices(self, n: int) -> KVIndices | None:
        """See `OutputIndices`."""
        assert self._ctx is not None
        return self._seen.output_indices(n, self._ctx) if isinstance(self._seen, PagedInputs) else None

    # ** used by the executor ******************************************************************************************

    def begin(self, batch: Batch) -> None:
        """Note what the batch's rows see. Raises nothing: they need no cells."""
        self._batch = batch
        self._histories.begin(batch)

    def roll_back(self, batch: Batch) -> None:
        """Nothing was taken."""

    def worst_cases(self, n_tokens: int) -> Iterator[None]:
        """See `StepCache.worst_cases`."""
        self._batch = None
        yield from self._histories.worst_cases(n_tokens)

    @property
    def shape_key(self) -> tuple[int, ...]:
        """Number of tokens, and the room for indices or gathered cells, or the run of cells under the mask."""
        return self._histories.shape_key

    def build_inputs(self, ctx: Context) -> GraphInputs:
        """Make the input tensors of a new graph: what its rows see."""
        self._ctx = ctx
        self._seen = self._histories.build_inputs(ctx)
        return GraphInputs(self._seen.seen, partial(self._write, self._seen))

    def _write(self, seen: HistoryInputs) -> None:
        assert self._batch is not None
        self._histories.write(seen, self._batch)
