"""PrefixWrites: how much time it takes from the requests that run."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pytest

from ollama_engine.kvcache import SavedRows
from ollama_engine.runner.core import prefix_writes
from ollama_engine.runner.core.prefix_writes import COPY_SHARE, SLICE_SECONDS, PrefixWrites, _Storing
from ollama_engine.runner.prefix_store.prefix_store import StoreLayout
from ollama_engine.runner.prefix_store.step_budget import StepBudget
from ollama_engine.runner.prefix_store.stored_prefix import BlockPart
from ollama_engine.runner.schedule.prefix_blocks import BLOCK


def test_copies_that_take_long_are_rare_beside_requests() -> None:
    """However slow a copy is, as out of a worker's memory, requests lose a fixed share of their time."""
    now, copied = [0.0], [0]
    store = SimpleNamespace(room=True, budget=StepBudget())
    parts: dict[str, Any] = {"store": store, "saveable": None, "cache_manager": None}
    monitor: Any = SimpleNamespace(clock=lambda: now[0])
    stored = PrefixWrites(**parts, monitor=monitor, post=lambda work: None)
    stored._storing.append(SimpleNamespace(missing=[1]))  # type: ignore[arg-type]

    def copy(_storing: object, _until: float) -> bool:
        copied[0] += 1
        now[0] += 0.005
        return True

    stored._copy = copy  # type: ignore[method-assign, assignment]
    copying, n = 0.0, 1000
    for _ in range(n):
        begin = now[0]
        stored.serve_gap(alone=False)
        copying += now[0] - begin
        now[0] += 0.002  # a step
    assert 0.8 * COPY_SHARE < copying / now[0] < 1.2 * COPY_SHARE
    assert copied[0] >= n // 100
    begin = now[0]
    for _ in range(10):
        stored.serve_gap(alone=True)
    assert now[0] - begin > 0.049, "nobody waits"


@pytest.mark.parametrize("piece", [0.00002, 0.0003])
def test_a_step_waits_for_as_many_pieces_as_half_a_millisecond_has(piece: float) -> None:
    """Bounded by the clock, whatever a block holds: no piece begins behind that time."""
    now, pieces, written = [0.0], [0], []

    def saving(_slot: int, begin: int, end: int) -> Generator[None, None, list[SavedRows]]:
        assert end - begin == BLOCK
        for _ in range(500):
            assert store.budget.nothing_left(0.0), "the writer waits meanwhile"
            now[0] += piece
            pieces[0] += 1
            yield
        return [SavedRows(np.arange(begin, end, dtype=np.int32), ())]

    layout = StoreLayout(((),), lambda _position: (0,))
    store = SimpleNamespace(room=True, budget=StepBudget(), layout=layout, write=lambda key, *_: written.append(key))
    saveable = SimpleNamespace(saving=saving)
    cache = SimpleNamespace(prefix_cache=SimpleNamespace(begins_with=lambda *_: True))
    monitor = SimpleNamespace(clock=lambda: now[0])
    parts: dict[str, Any] = {"store": store, "saveable": saveable, "cache_manager": cache, "monitor": monitor}
    stored = PrefixWrites(**parts, post=lambda work: None)
    storing = _Storing(0, cast(Any, None), [b"a", b"b"], [], deque([BlockPart(0, 0), BlockPart(1, 0)]))
    stored._storing.append(storing)
    gaps = list[float]()
    for _ in range(2000):
        begin = now[0]
        stored.serve_gap(alone=False)
        gaps.append(now[0] - begin)
        now[0] += 0.02  # a step
    assert written == [b"a", b"b"]
    assert pieces[0] == 1000, "what is begun goes on"
    assert SLICE_SECONDS - piece <= max(gaps) <= SLICE_SECONDS + piece * 1.001 < 0.001


def test_what_is_not_whole_is_not_stored() -> None:
    """Of a window that dropped tokens meanwhile, and of images that gave up their slots, no part has all rows."""
    written = list[tuple[int, list[int]]]()
    layout = StoreLayout(((),) * 4, lambda _position: (0,) * 4, image_kinds=(2, 3))
    store = SimpleNamespace(room=True, layout=layout, write=lambda _, kind, saved, __: written.append(
        (kind, saved.positions.tolist())), budget=StepBudget())  # fmt: skip

    def saving(_slot: int, begin: int, end: int) -> Generator[None, None, list[SavedRows]]:
        yield
        found = range(begin, end), range(begin + 1, end), [70, 90], [90]
        return [SavedRows(np.array(positions, np.int32), ()) for positions in found]

    cache = SimpleNamespace(prefix_cache=SimpleNamespace(begins_with=lambda *_: True))
    parts: dict[str, Any] = {"store": store, "saveable": SimpleNamespace(saving=saving), "cache_manager": cache}
    stored = PrefixWrites(**parts, monitor=cast(Any, SimpleNamespace(clock=lambda: 0.0)), post=lambda work: None)
    missing = deque(layout.parts_of(1, [70, 90]))
    stored._storing.append(_Storing(0, cast(Any, None), [b"a", b"b"], [3, 70, 90], missing))
    stored.serve_gap(alone=True)
    assert written == [(0, list(range(64, 128))), (2, [70, 90])]
    assert not stored.pending


@pytest.mark.parametrize("fails", [False, True])
def test_closing_copies_no_longer_than_it_may(fails: bool) -> None:
    """Also where the store has room for more; and it closes the store, whatever a copy raises."""
    now, closed, copied = [0.0], [False], [0]
    store: Any = SimpleNamespace(wait_for_room=lambda seconds: True, close=lambda seconds: closed.append(True),
                                 budget=StepBudget())  # fmt: skip
    others: Any = (None, None, SimpleNamespace(clock=lambda: now[0]), None)
    stored, storing = PrefixWrites(store, *others), cast(Any, SimpleNamespace(missing=[1]))
    stored._storing.extend([storing, storing])

    def copy(_storing: object, _until: float) -> bool:
        now[0] += 0.4
        copied[0] += 1
        if fails:
            raise MemoryError
        return copied[0] < 50

    with (
        patch.object(stored, "_copy", copy),
        patch.object(prefix_writes, "time", SimpleNamespace(monotonic=lambda: now[0])),
        pytest.raises(MemoryError) if fails else nullcontext(),
    ):
        stored.flush(1.0)
    assert copied[0] == (1 if fails else 3)
    assert closed[-1]
    assert not stored.pending
