"""Saves images of a cross-attention cache, and restores them in the same cache or in another."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from ollama_engine.errors import ContextOverflowError
from ollama_engine.input import Int32Array
from ollama_engine.kvcache.images import ImageSlots
from ollama_engine.kvcache.rows import (
    Bytes,
    SavedRows,
    Saving,
    reading,
    reserve_rows,
    result_of,
    row_bytes,
    write_rows,
)
from ollama_engine.kvcache.store import KeyValueStore

_LENGTH = np.dtype("<i4")
"""How an entry says how many rows its image has."""


class ImageSaver:
    """Saves the images of a sequence: one entry per image, with room for the rows of the largest. See `Saveable`.

    The last part of an entry says how many rows it has, int32. A second SavedRows has positions only: those of images
    that lost their slots.
    """

    def __init__(self, slots: ImageSlots, store: KeyValueStore, rows: int) -> None:
        self._slots = slots
        self._store = store
        self._rows = rows

    @property
    def row_bytes(self) -> tuple[tuple[int, ...], ...]:
        """Bytes of one image in keys and values of each layer in turn, and of its length; lost images have none."""
        return (*(self._rows * size for size in row_bytes(self._store)), _LENGTH.itemsize), ()

    def first_seen(self, position: int) -> tuple[int, ...]:
        """See `Saveable.first_seen`. Which image is the latest one is not known here; none sees those that are lost."""
        return 0, position

    image_kinds = (0,)

    def save(self, sequence: int, begin: int = 0, end: int | None = None) -> list[SavedRows]:
        """The images of a sequence."""
        return result_of(self.saving(sequence, begin, end))

    def saving(self, sequence: int, begin: int = 0, end: int | None = None) -> Saving:
        """`save`, piece by piece. Images given up meanwhile are left out, and those beside them."""
        images = self._held(sequence, begin, end)
        kept = {p: slot for p, slot in images.items() if slot is not None}
        parts = [np.zeros((len(kept), size), np.uint8) for size in self.row_bytes[0][:-1]]  # all of it goes to disk
        for entry, slot in enumerate(kept.values()):
            for piece in reading(self._store, self._cells(slot), self._used(parts, entry, slot)):
                yield piece
                if self._held(sequence, begin, end) != images:
                    return [SavedRows(_ints(()), tuple(np.empty((0, size), np.uint8) for size in sizes))
                            for sizes in self.row_bytes]  # fmt: skip
        lengths = np.array([self._slots.n_rows[slot] for slot in kept.values()], dtype=_LENGTH)
        return [
            SavedRows(_ints(kept), (*parts, lengths.view(np.uint8).reshape(len(kept), _LENGTH.itemsize))),
            SavedRows(_ints(p for p in images if p not in kept), ()),
        ]

    def _held(self, sequence: int, begin: int, end: int | None) -> dict[int, int | None]:
        """{position: slot} of a sequence's images between two positions."""
        images = self._slots.of(sequence).items()
        return {p: slot for p, slot in images if p >= begin and (end is None or p < end)}

    def _cells(self, slot: int) -> Int32Array:
        """The cells of a slot that its image has rows in."""
        first = slot * self._rows
        return np.arange(first, first + self._slots.n_rows[slot], dtype=np.int32)

    def _used(self, parts: Sequence[Bytes], entry: int, slot: int) -> list[Bytes]:
        """The rows of an entry that the image in this slot has, uint8 [rows, bytes of a row]: views of `parts`."""
        return [part[entry].reshape(self._rows, -1)[: self._slots.n_rows[slot]] for part in parts]

    def require_restore(self, saved: Sequence[SavedRows], without: Collection[int] = ()) -> None:
        """Raise ContextOverflowError where `restore` would. Changes nothing."""
        kept, _ = saved
        if len(kept.positions) and not self._slots.available(without=without):
            raise ContextOverflowError(
                f"an image does not fit: the others of {self._slots.n_slots} are still seen by some token"
            )

    def restore(self, sequence: int, saved: Sequence[SavedRows]) -> None:
        """Put what `save` returned behind what `sequence` holds; as many images as fit, the latest first."""
        self.require_restore(saved)
        kept, lost = saved
        if not len(kept.positions) and not len(lost.positions):  # a part of a text
            return
        n = min(len(kept.positions), len(slots := self._slots.available()))
        fits = kept.positions[len(kept.positions) - n :].tolist()
        images: dict[int, int | None] = dict.fromkeys([*lost.positions.tolist(), *kept.positions.tolist()])
        images.update(zip(fits, slots, strict=False))
        *parts, lengths = (part[len(part) - n :] for part in kept.rows)
        self._slots.restore(sequence, images, self._lengths(lengths))
        try:
            for entry, slot in enumerate(slots[:n]):
                write_rows(self._store, self._cells(slot), self._used(parts, entry, slot))
        except BaseException:
            self._slots.remove(sequence, min(images))
            raise

    def _lengths(self, saved: Bytes) -> list[int]:
        lengths: list[int] = np.ascontiguousarray(saved).view(_LENGTH).ravel().clip(1, self._rows).tolist()
        return lengths

    def reserve(self) -> None:
        """Take the memory for the graphs of `save` and `restore` now. Raises NoMemoryError."""
        reserve_rows(self._store)


def _ints(numbers: Iterable[int]) -> Int32Array:
    return np.fromiter(numbers, dtype=np.int32)
