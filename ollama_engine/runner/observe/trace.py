"""Trace: a timeline of the latest steps and requests for a trace viewer. Bounded; no clock and no effects.

The JSON is the Trace Event Format of Chrome's about:tracing, which Perfetto reads too: phases of steps are complete
events ("X") with one row for each phase, requests are nestable async events ("b", "n", "e").
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

__all__ = ["Phase", "PhaseSpan", "StepRecord", "Trace"]

Phase = Literal["plan", "build", "wait", "sample", "emit", "embed", "encode", "defrag", "restore"]
"""Choosing the inputs; building the graph or writing into the last one; waiting for the device; sampling; delivery.

A batch of texts to embed, an image to encode, and cells that move are one phase of a step of their own, between those
of requests."""

_ROWS = {phase: row for row, phase in enumerate(get_args(Phase), start=1)}
_OWN_NAMES: Mapping[Phase, str] = {"embed": "batch", "encode": "image", "defrag": "cells", "restore": "prefix"}
_PROCESS = 1

Event = dict[str, object]
Detail = str | int | float | bool | None


class PhaseSpan(NamedTuple):
    """One phase of one step, seconds of the caller's clock."""

    phase: Phase
    begin: float
    end: float


class StepRecord(NamedTuple):
    """One step. Steps are pipelined: its phases lie between those of other steps."""

    number: int
    spans: tuple[PhaseSpan, ...]
    prompt_tokens: int = 0
    completion_tokens: int = 0
    sequences: int = 0
    graph_reused: bool = False
    drafted_tokens: int = 0
    accepted_tokens: int = 0


@dataclass(slots=True)
class _RequestRecord:
    key: int
    begin: float
    details: dict[str, Detail]
    marks: list[tuple[str, float]] = field(default_factory=list)
    end: float | None = None


class Trace:
    """The last `n_steps` steps and as many ended requests, with the ones that run. Any thread may call any method."""

    def __init__(self, n_steps: int = 4096) -> None:
        if n_steps < 1:
            raise ValueError(f"a trace holds at least one step, got {n_steps}")
        # Reentrant: signal handlers and finalisers may call a method while another one runs in this thread.
        self._lock = threading.RLock()
        self._steps: deque[StepRecord] = deque(maxlen=n_steps)
        self._ended: deque[_RequestRecord] = deque(maxlen=n_steps)
        self._running: dict[int, _RequestRecord] = {}

    def step(self, record: StepRecord) -> None:
        """Add a finished step; the oldest one leaves when the trace is full."""
        with self._lock:
            self._steps.append(record)

    def begin_request(self, key: int, now: float, **details: Detail) -> None:
        """Begin a request; viewers show `details` with it."""
        with self._lock:
            self._running[key] = _RequestRecord(key, now, details)

    def mark_request(self, key: int, name: str, now: float) -> None:
        """Mark an event of a request: it was started, its first token was sampled, it was preempted.

        Ignores a request that is not running: its end may have come first.
        """
        with self._lock:
            if key in self._running:
                self._running[key].marks.append((name, now))

    def end_request(self, key: int, now: float, **details: Detail) -> None:
        """End a request. Ignores one that is not running."""
        with self._lock:
            record = self._running.pop(key, None)
            if record is not None:
                record.end = now
                record.details.update(details)
                self._ended.append(record)

    def steps(self) -> tuple[StepRecord, ...]:
        """The recorded steps, oldest first."""
        with self._lock:
            return tuple(self._steps)

    def to_json(self) -> str:
        """The whole trace as one JSON object; times are microseconds since its first event."""
        with self._lock:
            steps = tuple(self._steps)
            records = (*self._ended, *self._running.values())
            requests = [_RequestRecord(r.key, r.begin, dict(r.details), list(r.marks), r.end) for r in records]
        import json  # noqa: PLC0415 (a model that is not looked into does without)

        begins = [span.begin for step in steps for span in step.spans] + [request.begin for request in requests]
        origin = min(begins, default=0.0)
        events = [event for step in steps for event in _step_events(step, origin)]
        events += [event for request in requests for event in _request_events(request, origin)]
        return json.dumps({"traceEvents": [*_names(), *events], "displayTimeUnit": "ms"})


def _names() -> Iterator[Event]:
    yield _meta("process_name", 0, {"name": "ollama_engine"})
    for phase, row in _ROWS.items():
        yield _meta("thread_name", row, {"name": phase})
        yield _meta("thread_sort_index", row, {"sort_index": row})


def _meta(name: str, row: int, args: Mapping[str, Detail]) -> Event:
    return {"ph": "M", "name": name, "pid": _PROCESS, "tid": row, "args": args}


def _step_events(step: StepRecord, origin: float) -> Iterator[Event]:
    args = {name: value for name, value in step._asdict().items() if name not in ("number", "spans")}
    for span in step.spans:
        yield {
            "ph": "X",
            "cat": "step",
            "name": f"{_OWN_NAMES.get(span.phase, 'step')} {step.number}",
            "pid": _PROCESS,
            "tid": _ROWS[span.phase],
            "ts": 1e6 * (span.begin - origin),
            "dur": 1e6 * (span.end - span.begin),
            "args": args,
        }


def _request_events(request: _RequestRecord, origin: float) -> Iterator[Event]:
    def event(ph: str, name: str, time: float, args: Mapping[str, Detail]) -> Event:
        return {
            "ph": ph,
            "cat": "request",
            "name": name,
            "id": str(request.key),
            "pid": _PROCESS,
            "tid": 0,
            "ts": 1e6 * (time - origin),
            "args": args,
        }

    yield event("b", f"request {request.key}", request.begin, request.details)
    for name, time in request.marks:
        yield event("n", name, time, {})
    if request.end is not None:
        yield event("e", f"request {request.key}", request.end, {})
