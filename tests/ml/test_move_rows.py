"""Storage.move_rows: bytes of rows go to other rows, whatever the type; nothing else is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine.errors import ClosedError, ShapeError
from ollama_engine.ml.backend import Backend
from ollama_engine.ml.storage import Storage


def cells(*numbers: int) -> NDArray[np.int32]:
    return np.array(numbers, dtype=np.int32)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q8_0", "q4_0", "q6_K", "i8"])
def test_the_same_bytes(backend: Backend, dtype: str) -> None:
    with Storage(backend, 1) as storage:
        t = storage.add("t", dtype, (256, 9))
        storage.allocate(0)
        before = np.random.default_rng(1).integers(0, 256, (9, t.nbytes // 9), dtype=np.uint8)
        t.set_bytes(before)
        storage.move_rows(t, cells(8, 3, 5, 3), cells(0, 1, 5, 8))
        after = np.empty_like(before)
        t.read_into(after)
    assert (after == before[[8, 3, 2, 3, 4, 5, 6, 7, 3]]).all()


def test_no_rows(backend: Backend) -> None:
    with Storage(backend, 1) as storage:
        t = storage.add("t", "f32", (4, 2))
        storage.allocate(0)
        storage.move_rows(t, cells(), cells())
        assert not t.numpy().any()


REFUSALS: list[tuple[str, Callable[[Storage], Any], str]] = [
    ("beyond", lambda s: s.move_rows(s["t"], cells(0, 3), cells(1, 1)), "rows of f32\\[4, 3\\] are 0 to 2, got 3 to 1"),
    ("below", lambda s: s.move_rows(s["t"], cells(0), cells(-1)), "got 0 to -1"),
    ("unlike", lambda s: s.move_rows(s["t"], cells(0, 1), cells(2)), "2 sources and 1 targets"),
    ("deep", lambda s: s.move_rows(s["deep"], cells(0), cells(1)), "up to 2 dimensions"),
]


@pytest.mark.parametrize(("attempt", "message"), [c[1:] for c in REFUSALS], ids=[c[0] for c in REFUSALS])
def test_refusals_change_nothing(backend: Backend, attempt: Callable[[Storage], Any], message: str) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    with Storage(backend, 2) as storage:
        t = storage.add("t", "f32", (4, 3))
        storage.add("deep", "f32", (4, 3, 2))
        storage.allocate(0)
        t.set(values)
        with pytest.raises(ShapeError, match=message):
            attempt(storage)
        assert (t.numpy() == values).all()


def test_where_there_is_no_memory(backend: Backend) -> None:
    with Storage(backend, 1) as storage, Storage(backend, 1) as other:
        t = storage.add("t", "f32", (4, 3))
        with pytest.raises(ShapeError, match="allocate its Storage first"):
            storage.move_rows(t, cells(0), cells(1))
        storage.allocate(0)
        with pytest.raises(ShapeError, match="none of this storage"):
            other.move_rows(t, cells(0), cells(1))
    with pytest.raises(ClosedError):
        storage.move_rows(t, cells(0), cells(1))
