"""Trace: bounded, and JSON as trace viewers read it."""

from __future__ import annotations

import json
import threading
from typing import Any, get_args

import pytest

from ollama_engine.runner.observe.trace import Phase, PhaseSpan, StepRecord, Trace
from tests.support.waiting import join


def events(trace: Trace) -> list[dict[str, Any]]:
    parsed: list[dict[str, Any]] = json.loads(trace.to_json())["traceEvents"]
    return parsed


def step(number: int, begin: float) -> StepRecord:
    phases = enumerate(get_args(Phase))
    return StepRecord(number, tuple(PhaseSpan(phase, begin + i, begin + i + 0.5) for i, phase in phases), 5, 2, 3, True)


def test_rows_are_named_and_ordered() -> None:
    names = {e["tid"]: e["args"]["name"] for e in events(Trace()) if e["name"] == "thread_name"}
    order = {e["tid"]: e["args"]["sort_index"] for e in events(Trace()) if e["name"] == "thread_sort_index"}
    assert sorted(names, key=lambda row: order[row]) == sorted(names)
    assert [names[row] for row in sorted(names)] == [
        "plan",
        "build",
        "wait",
        "sample",
        "emit",
        "embed",
        "encode",
        "defrag",
        "restore",
    ]


def test_steps() -> None:
    trace = Trace()
    trace.step(step(7, 100.0))
    spans = [e for e in events(trace) if e["ph"] == "X"]
    assert [(e["tid"], e["ts"], e["dur"]) for e in spans] == [(i, 1e6 * (i - 1), 5e5) for i in range(1, 10)]
    assert [e["name"] for e in spans] == [*["step 7"] * 5, "batch 7", "image 7", "cells 7", "prefix 7"]
    assert spans[0]["args"] == {"prompt_tokens": 5, "completion_tokens": 2, "sequences": 3, "graph_reused": True,
                                "drafted_tokens": 0, "accepted_tokens": 0}  # fmt: skip


def test_a_step_says_how_many_guesses_it_verified_and_how_many_were_right() -> None:
    trace, counts = Trace(), [(0, 0), (6, 6), (6, 2), (3, 0)]
    for number, (drafted, accepted) in enumerate(counts):
        trace.step(step(number, 10.0 * number)._replace(drafted_tokens=drafted, accepted_tokens=accepted))
    of_steps = [e["args"] for e in events(trace) if e["ph"] == "X" and e["name"].startswith("step")]
    assert [(args["drafted_tokens"], args["accepted_tokens"]) for args in of_steps[::5]] == counts
    assert [args["drafted_tokens"] - args["accepted_tokens"] for args in of_steps] == [0] * 10 + [4] * 5 + [3] * 5


def test_requests() -> None:
    trace = Trace()
    trace.begin_request(3, 10.0, prompt_tokens=12)
    trace.begin_request(4, 11.0)
    trace.mark_request(3, "first token", 12.0)
    trace.end_request(3, 13.0, outcome="stop")
    got = [(e["ph"], e["id"], e["name"], e["ts"]) for e in events(trace) if e["ph"] in "bne"]
    assert got == [
        ("b", "3", "request 3", 0),
        ("n", "3", "first token", 2e6),
        ("e", "3", "request 3", 3e6),
        ("b", "4", "request 4", 1e6),  # still running
    ]
    begin = next(e for e in events(trace) if e["ph"] == "b")
    assert begin["args"] == {"prompt_tokens": 12, "outcome": "stop"}


def test_every_event_has_what_viewers_need() -> None:
    trace = Trace()
    trace.begin_request(1, 0.5, text='quotes " and \u2028')
    trace.step(step(1, 1.0))
    trace.end_request(1, 3.0)
    for event in events(trace):
        assert {"ph", "name", "pid", "tid"} <= set(event)
        assert event["ph"] == "M" or event["ts"] >= 0
        assert event["ph"] not in "bne" or {"id", "cat"} <= set(event)


def test_what_is_not_running_is_left_alone() -> None:
    trace = Trace()
    trace.end_request(1, 1.0)
    trace.mark_request(1, "first token", 1.0)
    assert all(event["ph"] == "M" for event in events(trace))


def test_bounded() -> None:
    trace = Trace(3)
    for number in range(10):
        trace.step(step(number, float(number)))
        trace.begin_request(number, float(number))
        trace.end_request(number, number + 0.5)
    assert [record.number for record in trace.steps()] == [7, 8, 9]
    assert [e["id"] for e in events(trace) if e["ph"] == "e"] == ["7", "8", "9"]
    with pytest.raises(ValueError, match="at least one step"):
        Trace(0)


def test_reading_beside_the_writer() -> None:
    trace = Trace(50)
    done = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            while not done.is_set():
                trace.to_json()
        except BaseException as error:
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(2000):
        trace.begin_request(number, float(number))
        trace.mark_request(number, "first token", float(number))
        trace.step(step(number, float(number)))
        trace.end_request(number, float(number), outcome="stop")
    done.set()
    join(reader)
    assert not failures
    assert len(trace.steps()) == 50
