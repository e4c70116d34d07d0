"""The storage of keys and values: tensors for each layer, whose rows are addressed by cell number. No policy.

Keys of a layer are [key_dim * kv_heads, cells]. Values have the same layout for paged and flash attention. Without they
are permuted, [cells, value_dim * kv_heads], because the product with the attention weights runs along the cells. Layers
with latent attention store keys only, of which their values are a part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ollama_engine.input import Int32Array
from ollama_engine.kvcache.config import CacheConfig, LayerShape
from ollama_engine.kvcache.rotation import rotation_of
from ollama_engine.ml import ops
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.graph.tensor import Tensor


class KeyValueStore:
    """Keys and values of `layers` for `n_cells` tokens, all zero at first.

    `devices` gives the backend's device number for each layer; `paged`: `ops.paged_attention` reads them. Raises
    NoMemoryError when a device is too small and ConfigError when the type cannot hold the heads.
    """

    def __init__(
        self,
        backend: Backend,
        layers: Sequence[LayerShape],
        devices: Sequence[int],
        n_cells: int,
        config: CacheConfig,
        *,
        paged: bool = False,
    ) -> None:
        for layer in layers:
            config.check(layer)
        # -- configuration --
        self.backend = backend
        self.layers = tuple(layers)
        self.n_cells = n_cells
        self.config = config
        self.paged = paged
        self.rotations = tuple(rotation_of(layer, config.dtype) for layer in layers)
        """Of each layer; see `LayerView.rotation`. Keys and values here are as they are stored: rotated."""
        self.permuted = not config.flash_attention and not paged
        """Whether the values of one dimension lie side by side, as the second product of plain attention reads them."""
        # -- storage --
        self._storages: dict[int, Storage] = {}
        self._keys: list[Tensor] = []
        self._values: dict[int, Tensor] = {}
        for number, (layer, device) in enumerate(zip(self.layers, devices, strict=True)):
            self._declare(number, layer, device)
        for device, storage in self._storages.items():
            storage.allocate(device)

    def _declare(self, number: int, layer: LayerShape, device: int) -> None:
        storage = self._storages.get(device)
        if storage is None:
            storage = self._storages[device] = Storage(self.backend, 2 * len(self.layers))
        dtype, shape = self.config.dtype, (layer.n_values, self.n_cells)
        self._keys.append(storage.add(f"cache_k.{number}", dtype, (layer.n_keys, self.n_cells)))
        if not layer.latent:
            self._values[number] = storage.add(f"cache_v.{number}", dtype, shape[::-1] if self.permuted else shape)

    # -- in graphs -----------------------------------------------------------------------------------------------------

    def write_keys(self, layer: int, keys: Tensor, places: CellIndices) -> Tensor:
        """Write keys of n tokens, f32 of n_keys * n elements, into `places`. Pass the result to `ctx.expand`."""
        # A view, as ggml's kernel for CUDA that rotates and writes in one expects it.
        rows = ops.view(keys, (self.layers[layer].n_keys, places.n))
        return ops.set_rows(self._keys[layer], rows, places.rows)

    def write_values(self, layer: int, values: Tensor, places: CellIndices) -> Tensor:
        """Write values of n tokens, f32 of n_values * n elements, into `places`. Pass the result to `ctx.expand`."""
        n_values = self.layers[layer].n_values
        if not self.permuted:
            return ops.set_rows(self._values[layer], ops.reshape(values, n_values, places.n), places.rows)
        elements = ops.reshape(values, 1, n_values * places.n)
        return ops.set_rows(self._elements(layer, places.ctx), elements, places.elements[n_values])

    def read_keys(self, layer: int, places: CellIndices) -> Tensor:
        """Keys of the cells named by `places` (of type i32), f32 [key_dim, kv_heads, n]."""
        shape = self.layers[layer]
        rows = ops.get_rows(self._keys[layer], places.rows)
        return ops.reshape(rows, shape.key_dim, shape.kv_heads, places.n)

    def read_values(self, layer: int, places: CellIndices) -> Tensor:
        """Values of the cells named by `places` (of type i32), f32 of n_values * n elements."""
        if not self.permuted:
            return ops.get_rows(self._values[layer], places.rows)
        return ops.get_rows(self._elements(layer, places.ctx), places.elements[self.layers[layer].n_values])

    def _elements(self, layer: int, ctx: Context) -> Tensor:
        """Permuted values as rows of one element, [1, n_cells * n_values], for get_rows and set_rows."""
        values = self._values[layer]
        n = self.n_cells * self.layers[layer].n_values
        return ops.view(values, (1, n), (values.stride(0),), ctx=ctx)

    def history(self, layer: int, begin: int, end: int, ctx: Context) -> tuple[Tensor, Tensor]:
        """The cells [begin, end) as attention reads them: keys [key_dim, n, kv_heads], and values; views where it can.

        Values are [value_dim, n, kv_heads], or [n, value_dim, kv_heads] where they are permuted.
        """
        shape = self.layers[layer]
        keys = _run_of_cells(self._keys[layer], shape.key_dim, shape.kv_heads, begin, end, ctx)
        if shape.latent:
            values = _run_of_cells(self._keys[layer], shape.value_dim, shape.kv_heads, begin, end, ctx)
            return keys, ops.cont(ops.transpose(values)) if self.permuted else values
        values = self._values[layer]
        if not self.permuted:
            return keys, _run_of_cells(values, shape.value_dim, shape.kv_heads, begin, end, ctx)
        row = values.stride(1)
        dims = (end - begin, shape.value_dim, shape.kv_heads)
        return keys, ops.view(values, dims, (row, row * shape.value_dim), begin * values.stride(0), ctx=ctx)

    def gather(self, layer: int, cells: Tensor) -> tuple[Tensor, Tensor]:
        """Copies, f32, of the keys and values of `cells` i32 [n], shaped as those of `history`.

        Only for a store whose values are not permuted.
        """
        shape, n = self.layers[layer], cells.dim(0)
        keys = ops.get_rows(self._keys[layer], cells)
        values = keys if shape.latent else ops.get_rows(self._values[layer], cells)
        return (
            _run_of_cells(keys, shape.key_dim, shape.kv_heads, 0, n),
            _run_of_cells(values, shape.value_dim, shape.kv_heads, 0, n),
        )

    # -- outside of graphs ---------------------------------------------------------------------------------------------

    def tensors(self) -> Iterator[Tensor]:
        """The storage of keys and values, of each layer in turn; of keys only where values are a part of them."""
        for number, keys in enumerate(self._keys):
            yield keys
            if number in self._values:
                yield self._values[number]

    def is_permuted(self, tensor: Tensor) -> bool:
        """Whether the cells lie along the rows of one of `tensors`."""
        return self.permuted and all(tensor is not keys for keys in self._keys)

    @property
    def suits_gathering(self) -> bool:
        """Whether attention over many rows gathers these keys and values first: on the CPU, with flash attention.

        On GPUs it has not been measured.
        """
        on_cpu = all(self.backend.devices[device].kind == "cpu" for device in self._storages)
        return on_cpu and not self.permuted

    def zero(self, cells: npt.NDArray[np.bool_]) -> None:
        """Zero the keys and values of the chosen cells, bool [n_cells]."""
        for storage in self._keys:
            _zero(storage, cells, along_rows=False)
        for storage in self._values.values():
            _zero(storage, cells, along_rows=self.permuted)

    @property
    def nbytes(self) -> dict[str, int]:
        """Memory taken, {device name: bytes}."""
        return {self.backend.devices[device].name: storage.nbytes for device, storage in self._storages.items()}

    def close(self) -> None:
        for storage in self._storages.values():
            storage.close()


class CellIndices:
    """Inputs of one graph with the cells of `n` tokens: as row numbers, and per value where values are permuted.

    Reading takes type "i32", writing "i64".
    """

    def __init__(self, ctx: Context, store: KeyValueStore, n: int, dtype: str, name: str) -> None:
        self.ctx = ctx
        self.n = n
        self.rows = ctx.input(dtype, (n,), name=name)
        self.elements: dict[int, Tensor] = {}
        self._n_cells = store.n_cells
        self._type: npt.DTypeLike = np.int32 if dtype == "i32" else np.int64
        if store.permuted:
            for count in {layer.n_values for layer in store.layers if not layer.latent}:
                self.elements[count] = ctx.input(dtype, (count * n,), name=f"{name}_values")

    def set(self, cells: Int32Array, *, values: bool = True) -> None:
        """Write the cell numbers into the inputs; without `values` where the graph reads keys only."""
        self.rows.set(cells.astype(self._type))
        for count, tensor in self.elements.items() if values else ():
            # The permuted values of one token lie n_cells apart.
            dims = np.arange(count, dtype=np.int64) * self._n_cells
            tensor.set((cells[:, None] + dims[None, :]).reshape(-1).astype(self._type))


def _run_of_cells(
    storage: Tensor, dim: int, heads: int, begin: int, end: int, ctx: Context | None = None
) -> Tensor:  # fmt: skip
    """The first `dim` numbers of each head of [dim or more * heads, cells] as [dim, end - begin, heads]."""
    cell = storage.stride(1)
    return ops.view(storage, (dim, end - begin, heads), (cell, cell // heads), begin * cell, ctx=ctx)


def _zero(storage: Tensor, cells: npt.NDArray[np.bool_], *, along_rows: bool) -> None:
    """Zero the chosen cells of a [.., cells] storage, or of a [cells, ..] one when they lie along its rows."""
    raw = np.empty(storage.nbytes, dtype=np.uint8)
    storage.read_into(raw)
    if along_rows:
        raw.reshape(storage.dim(1), len(cells), -1)[:, cells] = 0
    else:
        raw.reshape(len(cells), -1)[cells] = 0
    storage.set_bytes(raw)
