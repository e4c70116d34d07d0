"""PrefixWrites: how much time it takes from the requests that run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

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
