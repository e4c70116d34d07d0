"""The storage of recurrent states: a tensor for each part of each layer, with a row for each slot. No policy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ollama_engine.kvcache.rows import SLICE, Bytes, tables
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.graph.tensor import Tensor


class StateStore:
    """States of `n_slots` sequences. `shapes`: for each layer the shapes of its parts; `devices`: where it lies.

    Raises NoMemoryError when a device is too small.
    """

    def __init__(
        self, backend: Backend, shapes: Sequence[tuple[tuple[int, ...], ...]], devices: Sequence[int], n_slots: int
    ) -> None:
        self._backend = backend
        self._n_slots = n_slots
        self._storages: dict[int, Storage] = {}
        self._layers: list[list[Tensor]] = []
        n_parts = sum(map(len, shapes))
        for number, (parts, device) in enumerate(zip(shapes, devices, strict=True)):
            storage = self._storages.setdefault(device, Storage(backend, n_parts))
            self._layers.append([
                storage.add(f"state.{number}.{i}", "f32", (math.prod(part), n_slots)) for i, part in enumerate(parts)
            ])  # fmt: skip
        for device, storage in self._storages.items():
            storage.allocate(device)

    def part(self, layer: int, number: int) -> Tensor:
        """f32 [elements, slots]."""
        return self._layers[layer][number]

    def _parts(self) -> list[Tensor]:
        return [part for parts in self._layers for part in parts]

    @property
    def row_bytes(self) -> tuple[int, ...]:
        """Bytes of each part of each layer in turn, for one state."""
        return tuple(part.nbytes // self._n_slots for part in self._parts())

    def empty(self, n: int) -> tuple[Bytes, ...]:
        """Room for `n` states, uint8 [n, bytes] for each part of each layer in turn."""
        return tables(n, self.row_bytes)

    def reading(self, slot: int, rows: Sequence[Bytes]) -> Iterator[None]:
        """Read the state in a slot into `rows`, uint8 [bytes] each, about SLICE bytes at a time."""
        left = SLICE
        for part, row in zip(self._parts(), rows, strict=True):
            for begin in range(0, len(row), SLICE):
                piece = row[begin : begin + SLICE]
                part.read_part(slot * len(row) + begin, piece)
                left -= len(piece)
                if left <= 0:
                    left = SLICE
                    yield

    def write(self, slot: int, rows: Sequence[Bytes]) -> None:
        """Write one state, as `read` returned it."""
        for part, row in zip(self._parts(), rows, strict=True):
            part.set_part(slot * row.nbytes, np.ascontiguousarray(row))

    @property
    def nbytes(self) -> dict[str, int]:
        """Memory taken, {device name: bytes}."""
        return {self._backend.devices[device].name: storage.nbytes for device, storage in self._storages.items()}

    def close(self) -> None:
        for storage in self._storages.values():
            storage.close()
