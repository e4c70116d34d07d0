"""StateSaver: a state that takes megabytes is copied in pieces between steps, and never as parts of two states."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ollama_engine.kvcache.rows import SLICE, SavedRows, result_of
from ollama_engine.kvcache.state_saving import StateSaver
from ollama_engine.kvcache.state_slots import Run, StateSlots
from ollama_engine.kvcache.state_store import StateStore
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend

SHAPES = (((SLICE // 4 + 100,), (7,)), ((2 * SLICE // 4,), (7,)))


@pytest.fixture
def world() -> Iterator[tuple[StateSlots, StateStore]]:
    with Backend(BackendParams(threads=1)) as backend:
        store = StateStore(backend, SHAPES, (0, 0), 4)
        rng = np.random.default_rng(1)
        for slot in range(4):
            store.write(slot, [rng.integers(0, 256, size).astype(np.uint8) for size in store.row_bytes])
        yield StateSlots(4), store
        store.close()


def copied(kinds: list[SavedRows]) -> list[bytes]:
    (kind,) = kinds
    return [kind.positions.tobytes(), *(row.tobytes() for row in kind.rows)]


def test_pieces_are_small_and_are_the_state_together(world: tuple[StateSlots, StateStore]) -> None:
    slots, store = world
    saver = StateSaver(slots, store)
    slots.place({3: Run(0, 70, (64,))})
    saving = saver.saving(3, 0, 64)
    assert len(list(saving)) == 3, "of 3 * SLICE + 856 bytes"
    found = result_of(saver.saving(3, 0, 64))
    assert found[0].positions.tolist() == [63]
    assert copied(found) == copied(saver.save(3, 0, 64))
    restored = StateSlots(4)
    StateSaver(restored, store).restore(5, found)
    slot = restored.of(5)[64]
    rows = store.empty(1)
    list(store.reading(slot, [row[0] for row in rows]))
    assert [row.tobytes() for row in rows] == copied(found)[1:]


@pytest.mark.parametrize("done", range(1, 4))
def test_a_state_that_is_given_up_meanwhile_is_left_out(world: tuple[StateSlots, StateStore], done: int) -> None:
    slots, store = world
    saver = StateSaver(slots, store)
    slots.place({3: Run(0, 64)})
    saving = saver.saving(3, 0, 64)
    for _ in range(done):
        next(saving)
    taken = slots.of(3)[64]
    slots.remove(3)
    slots.place({3: Run(0, 64)})
    assert slots.of(3)[64] == taken, "the same place of the same sequence holds another state"
    assert [len(kind.positions) for kind in result_of(saving)] == [0]
