"""Packs the caches of a composite that gain by it, each by itself: their cells are numbered apart."""

from __future__ import annotations

from collections.abc import Sequence

from ollama_engine.input import Int32Array
from ollama_engine.kvcache.base import Defragmentable

__all__ = ["CompositePacker"]


class CompositePacker:
    """See `Defragmentable`."""

    def __init__(self, packers: Sequence[Defragmentable]) -> None:
        self._packers = tuple(packers)

    def due(self, sequences: Int32Array, rows: int) -> bool:
        """Whether it is for any of them."""
        return any(packer.due(sequences, rows) for packer in self._packers)

    def defrag(self, sequences: Int32Array, rows: int) -> int:
        """Returns how many cells moved in all of them."""
        return sum(packer.defrag(sequences, rows) for packer in self._packers)

    def reserve(self) -> None:
        """Take the memory for moving cells of any of them. Raises NoMemoryError."""
        for packer in self._packers:
            packer.reserve()
