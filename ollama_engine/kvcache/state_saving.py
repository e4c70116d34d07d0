"""Saves recurrent states, and restores them in the same cache or in another."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ollama_engine.errors import ContextOverflowError
from ollama_engine.kvcache.rows import SavedRows, Saving, result_of
from ollama_engine.kvcache.state_slots import StateSlots
from ollama_engine.kvcache.state_store import StateStore


class StateSaver:
    """Saves the latest state of a sequence: of large models, one takes as much as thousands of cells. See `Saveable`.

    Its entry has the position of the last token that it depends on.
    """

    def __init__(self, slots: StateSlots, store: StateStore) -> None:
        self._slots = slots
        self._store = store

    @property
    def row_bytes(self) -> tuple[tuple[int, ...], ...]:
        """Bytes of a state: each part of each layer in turn."""
        return (self._store.row_bytes,)

    def first_seen(self, position: int) -> tuple[int, ...]:
        """The entry of the token before `position`: its state is all that a token there sees."""
        return (max(0, position - 1),)

    image_kinds = ()

    def save(self, sequence: int, begin: int = 0, end: int | None = None) -> list[SavedRows]:
        return result_of(self.saving(sequence, begin, end))

    def saving(self, sequence: int, begin: int = 0, end: int | None = None) -> Saving:
        states = {p: slot for p, slot in self._slots.of(sequence).items() if p > begin and (end is None or p <= end)}
        for position in [max(states)] if states else []:
            rows, state = self._store.empty(1), self._slots.state(sequence, position)
            for piece in self._store.reading(states[position], [row[0] for row in rows]):
                yield piece
                if self._slots.state(sequence, position) is not state:
                    break  # given up meanwhile
            else:
                return [SavedRows(np.array([position - 1], np.int32), rows)]
        return [SavedRows(np.empty(0, np.int32), self._store.empty(0))]

    def require_restore(self, saved: Sequence[SavedRows], without: Collection[int] = ()) -> None:
        """Raise ContextOverflowError where `restore` would. Changes nothing."""
        (kind,) = saved
        if len(kind.positions) and not self._slots.available({}):
            raise ContextOverflowError("a state does not fit: all slots belong to sequences that are being computed")

    def restore(self, sequence: int, saved: Sequence[SavedRows]) -> None:
        self.require_restore(saved)
        (kind,) = saved
        for entry, position in enumerate(kind.positions.tolist()):
            slot = self._slots.restore(sequence, position + 1)
            try:
                self._store.write(slot, [rows[entry] for rows in kind.rows])
            except BaseException:
                self._slots.remove(sequence, position)
                raise

    def reserve(self) -> None:
        """Does nothing: states are copied without a graph."""
