"""Causal cache: every token attends to the earlier tokens of its sequence, all of them or those within a window.

Keys of a layer lie as [key_dim * kv_heads, cells]. Values lie alike for flash attention; without it they lie as
[cells, value_dim * kv_heads], because the product with the attention weights runs along the cells.

Everything that changes from step to step is an input of the graph: the cells that the batch's tokens go to, and the
mask. So one graph serves as long as the number of tokens and the padded history stay the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ollama_engine.errors import ContextOverflowError
from ollama_engine.input import Batch, Int32Array
from ollama_engine.kvcache.cells import Cells
from ollama_engine.kvcache.config import CacheConfig, LayerShape
from ollama_engine.ml import ops
from ollama_engine.ml.backend import Backend
from ollama_engine.ml.context import Context
from ollama_engine.ml.storage import Storage
from ollama_engine.ml.tensor import Tensor

_MINUS_INFINITY = np.float16(-np.inf)


class CausalCache:
    """Keys and values of `layers` for `n_cells` tokens, shared by all sequences.

    `devices` gives the backend's device number for each layer. All layers have one window (or none). Raises
    NoMemoryError when a device is too small and ConfigError when the type cannot hold the heads.
    """

    def __init__(
        self,
        backend: Backend,
        layers: Sequence[LayerShape],
        devices: Sequence[int],
        n_cells: int,
        config: CacheConfig,
    ) -> None:
        # -- configuration --
        self.config = config
        self.layers = tuple(layers)
        self.window = layers[0].window
        if any(layer.window != self.window for layer in layers):
            raise ValueError("all layers of one causal cache have one window; compose caches for several")
        for layer in layers:
            config.check(layer)
        # -- storage --
        self._backend = backend
        self._storages: dict[int, Storage] = {}
        # First, for it refuses what does not fit before the table takes memory.
        self._n_cells = _round_up(n_cells, config.history_padding)
        self._keys, self._values = self._allocate(devices)
        # -- metadata --
        self.cells = Cells(self._n_cells)
        # -- current batch --
        self._batch: Batch | None = None
        self._places: Int32Array = np.empty(0, dtype=np.int32)
        self._n_tokens = 0
        self._history = 0
        # -- current graph --
        self._layer = 0
        self._ctx: Context | None = None
        self._key_rows: Tensor | None = None
        self._value_rows: Tensor | None = None
        self._mask: Tensor | None = None

    def _allocate(self, devices: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:
        keys, values = [], []
        for number, (layer, device) in enumerate(zip(self.layers, devices, strict=True)):
            storage = self._storages.get(device)
            if storage is None:
                storage = self._storages[device] = Storage(self._backend, 2 * len(self.layers))
            n_keys, n_values = layer.key_dim * layer.kv_heads, layer.value_dim * layer.kv_heads
            keys.append(storage.add(f"cache_k.{number}", self.config.dtype, (n_keys, self._n_cells)))
            shape = (self._n_cells, n_values) if self.config.permuted_values else (n_values, self._n_cells)
            values.append(storage.add(f"cache_v.{number}", self.config.dtype, shape))
        for device, storage in self._storages.items():
            storage.allocate(device)
        return keys, values

    # ** used by the runner ********************************************************************************************

    def begin(self, batch: Batch) -> None:
        """Find cells for the batch's tokens. Raises ContextOverflowError, changing nothing, when too few are free."""
        drops = self._out_of_window(batch)
        if len(batch) > self.cells.n_free and len(batch) > self.cells.n_free_without(drops):
            raise ContextOverflowError(
                f"{len(batch)} tokens do not fit: {self.cells.n_free_without(drops)} of {len(self.cells)} cache cells "
                "are free"
            )
        for sequence, end in drops:
            self.cells.remove(sequence, 0, end)
        places = self.cells.find_free(len(batch))
        assert places is not None
        self.cells.place(places, batch.positions, batch.sequences)
        self._batch = batch
        self._places = places
        self._n_tokens = len(batch)
        self._history = min(_round_up(self.cells.extent(), self.config.history_padding), len(self.cells))

    def _out_of_window(self, batch: Batch) -> list[tuple[int, int]]:
        """(sequence, position): what lies before is seen by no row of this batch, nor by any later one."""
        if self.window is None:
            return []
        firsts = [(int(s), int(batch.positions[batch.sequences == s].min())) for s in np.unique(batch.sequences)]
        return [(sequence, first - self.window + 1) for sequence, first in firsts if first >= self.window]

    def begin_reserve(self, n_tokens: int) -> None:
        """Prepare for building a worst-case graph: as many tokens, the whole history, no cells taken."""
        self._batch = None
        self._n_tokens = n_tokens
        self._history = len(self.cells)

    @property
    def shape_key(self) -> tuple[int, ...]:
        """Number of tokens and padded history."""
        return (self._n_tokens, self._history)

    def build_inputs(self, ctx: Context) -> None:
        """Make the input tensors of a new graph: cells for the tokens, and the mask f16 [history, tokens]."""
        self._ctx = ctx
        self._key_rows = ctx.input("i64", (self._n_tokens,), name="cache_rows")
        self._value_rows = self._key_rows
        if self.config.permuted_values:
            n_values = max(layer.value_dim * layer.kv_heads for layer in self.layers)
            self._value_rows = ctx.input("i64", (n_values * self._n_tokens,), name="cache_value_places")
        self._mask = ctx.input("f16", (self._history, self._n_tokens), name="mask")

    def write_inputs(self) -> None:
        """Write the current batch's cells and mask into the inputs of the latest graph."""
        assert self._batch is not None
        assert self._key_rows is not None
        assert self._value_rows is not None
        assert self._mask is not None
        self._key_rows.set(self._places.astype(np.int64))
        if self.config.permuted_values:
            self._value_rows.set(self._value_places())
        seen = self.cells.visible(self._history, self._batch.positions, self._batch.sequences, self.window)
        self._mask.set(np.where(seen, np.float16(0), _MINUS_INFINITY))

    def _value_places(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """For values [n_values, tokens] in that order, the element of the storage [cells, n_values] each goes to."""
        n_values = max(layer.value_dim * layer.kv_heads for layer in self.layers)
        dims = np.arange(n_values, dtype=np.int64) * len(self.cells)
        return (self._places.astype(np.int64)[:, None] + dims[None, :]).reshape(-1)

    def remove(self, sequence: int, begin: int = 0, end: int | None = None) -> None:
        """Forget tokens of a sequence, from position `begin` to before `end`."""
        self.cells.remove(sequence, begin, end)

    def scrub(self) -> None:
        """Zero the free cells. For after a step that computed NaN or infinity: a mask does not hide those."""
        free = self.cells.owners == 0
        for storage in self._keys:
            _zero(storage, free, along_rows=False)
        for storage in self._values:
            _zero(storage, free, along_rows=self.config.permuted_values)

    @property
    def nbytes(self) -> dict[str, int]:
        """Memory taken, {device name: bytes}."""
        return {self._backend.devices[device].name: storage.nbytes for device, storage in self._storages.items()}

    def close(self) -> None:
        """Free the memory."""
        for storage in self._storages.values():
            storage.close()

    # ** used by models ************************************************************************************************

    @property
    def flash_attention(self) -> bool:
        """Whether values come as flash attention reads them, or permuted for two products."""
        return self.config.flash_attention

    def set_layer(self, layer: int) -> None:
        """Choose the layer that `put` and `get` speak of."""
        self._layer = layer

    def put(self, key: Tensor, value: Tensor) -> None:
        """Store keys [key_dim, kv_heads, n] and values [value_dim, kv_heads, n] of this batch's tokens."""
        assert self._ctx is not None
        assert self._key_rows is not None
        layer, n = self.layers[self._layer], self._n_tokens
        rows = ops.reshape(key, layer.key_dim * layer.kv_heads, n)
        self._ctx.expand(ops.set_rows(self._keys[self._layer], rows, self._key_rows))
        self._ctx.expand(self._put_values(value, layer, n))

    def _put_values(self, value: Tensor, layer: LayerShape, n: int) -> Tensor:
        assert self._value_rows is not None
        storage, n_values = self._values[self._layer], layer.value_dim * layer.kv_heads
        if not self.config.permuted_values:
            return ops.set_rows(storage, ops.reshape(value, n_values, n), self._value_rows)
        elements = ops.view(storage, (1, len(self.cells) * n_values), (storage.stride(0),), ctx=self._ctx)
        places = self._value_rows
        if places.dim(0) != n_values * n:
            raise ValueError("layers with different numbers of values need flash attention")
        return ops.set_rows(elements, ops.reshape(value, 1, n_values * n), places)

    def get(self) -> tuple[Tensor, Tensor, Tensor]:
        """Keys [key_dim, history, kv_heads], values, and the mask f16 [history, n] of this layer."""
        assert self._mask is not None
        layer = self.layers[self._layer]
        keys = self._window(self._keys[self._layer], layer.key_dim, layer.kv_heads)
        values = self._values[self._layer]
        if not self.config.permuted_values:
            return keys, self._window(values, layer.value_dim, layer.kv_heads), self._mask
        row = values.stride(1)
        shape = (self._history, layer.value_dim, layer.kv_heads)
        return keys, ops.view(values, shape, (row, row * layer.value_dim), ctx=self._ctx), self._mask

    def _window(self, storage: Tensor, dim: int, heads: int) -> Tensor:
        """[dim * heads, cells] as [dim, history, heads]."""
        head_bytes = storage.stride(1) // heads
        return ops.view(storage, (dim, self._history, heads), (storage.stride(1), head_bytes), ctx=self._ctx)


def _zero(storage: Tensor, cells: npt.NDArray[np.bool_], *, along_rows: bool) -> None:
    """Zero the chosen cells of a [.., cells] storage, or of a [cells, ..] one when they lie along its rows."""
    raw = np.empty(storage.nbytes, dtype=np.uint8)
    storage.read_into(raw)
    if along_rows:
        raw.reshape(storage.dim(1), len(cells), -1)[:, cells] = 0
    else:
        raw.reshape(len(cells), -1)[cells] = 0
    storage.set_bytes(raw)


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
