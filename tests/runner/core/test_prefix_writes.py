"""PrefixWrites: how much time it takes from the requests that run."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from ollama_engine.runner.core import prefix_writes
from ollama_engine.runner.core.prefix_writes import COPY_SHARE, PrefixWrites


def test_copies_that_take_long_are_rare_beside_requests() -> None:
    """However slow a copy is, as out of a worker's memory, requests lose a fixed share of their time."""
    now, copied = [0.0], [0]
    parts: dict[str, Any] = {"store": SimpleNamespace(room=True), "saveable": None, "cache_manager": None}
    monitor: Any = SimpleNamespace(clock=lambda: now[0])
    stored = PrefixWrites(**parts, monitor=monitor, post=lambda work: None)
    stored._storing.append(SimpleNamespace(missing=[1]))  # type: ignore[arg-type]

    def copy(_storing: object, rows: int) -> bool:
        copied[0] += rows
        now[0] += 0.005
        return True

    stored._copy = copy  # type: ignore[method-assign]
    copying, n = 0.0, 1000
    for _ in range(n):
        begin = now[0]
        stored.serve_gap(alone=False)
        copying += now[0] - begin
        now[0] += 0.002  # a step
    assert 0.8 * COPY_SHARE < copying / now[0] < 1.2 * COPY_SHARE
    assert copied[0] >= 8 * n // 100, "not row by row"
    begin = now[0]
    for _ in range(10):
        stored.serve_gap(alone=True)
    assert now[0] - begin > 0.049, "nobody waits"


@pytest.mark.parametrize("fails", [False, True])
def test_closing_copies_no_longer_than_it_may(fails: bool) -> None:
    """Also where the store has room for more; and it closes the store, whatever a copy raises."""
    now, closed, copied = [0.0], [False], [0]
    store: Any = SimpleNamespace(wait_for_room=lambda seconds: True, close=lambda seconds: closed.append(True))
    others: Any = (None,) * 4
    stored, storing = PrefixWrites(store, *others), cast(Any, SimpleNamespace(missing=[1]))
    stored._storing.extend([storing, storing])

    def copy(_storing: object, _rows: int) -> bool:
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
