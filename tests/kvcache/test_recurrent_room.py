"""RecurrentCache: which steps there are slots for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ollama_engine.errors import ContextOverflowError
from ollama_engine.input import Batch
from ollama_engine.kvcache.config import LayerShape
from ollama_engine.kvcache.recurrent import RecurrentCache
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend


def batch(*rows: tuple[int, int], in_place: bool) -> Batch:
    """Rows (sequence, position)."""
    sequences, positions = np.array(rows, np.int32).T.copy()
    every = np.arange(len(rows), dtype=np.int32)
    return Batch(np.zeros_like(positions), positions, sequences, every, in_place=in_place)


@pytest.fixture
def cache() -> Iterator[RecurrentCache]:
    """Both slots hold a state, of two sequences at position 1."""
    with Backend(BackendParams(threads=1, gpu_layers=0)) as backend:
        cache = RecurrentCache(backend, [LayerShape(state=((8, 3),))], [0], 2)
        for sequence in (0, 1):
            cache.begin(batch((sequence, 0), in_place=True))
        yield cache
        cache.close()


def test_a_step_in_place_needs_no_other_slots(cache: RecurrentCache) -> None:
    step = batch((0, 1), (1, 1), in_place=True)
    cache.require_room(step)
    cache.begin(step)
    assert [list(cache.slots.of(sequence)) for sequence in (0, 1)] == [[2], [2]]


@pytest.mark.parametrize("in_place", [False, True])
def test_other_steps_do(cache: RecurrentCache, in_place: bool) -> None:
    cache.hold(1)  # its state is a checkpoint now, and stays as it is
    for call in (cache.require_room, cache.begin):
        with pytest.raises(ContextOverflowError, match="the states of 2 sequences do not fit: 0 of 2 slots are free"):
            call(batch((0, 1), (1, 1), in_place=in_place))
