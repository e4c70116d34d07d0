"""Requests of any caller, steered by their numbers in `slots`: ended, and served sooner or later."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.errors import ClosedError, ConfigError
from tests.support.waiting import eventually

ENDLESS = SamplingParams(temperature=0, max_tokens=100_000)
SHORT = SamplingParams(temperature=0, max_tokens=2)
FOREVER = {"type": "string", "minLength": 100_000}


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(demo.path(), num_ctx=128, parallel=1, threads=1, verify=True) as engine:
        yield engine


def test_a_request_of_somebody_else_is_ended(engine: Engine) -> None:
    """Its caller is told; requests beside it go on."""
    running = engine.submit("One day", ENDLESS, format=FOREVER, on_overflow="shift")
    eventually(lambda: [slot.state for slot in engine.slots()] == ["answer"])
    waiting, other = engine.submit("Two", ENDLESS), engine.submit("Three", SHORT)
    eventually(lambda: len(engine.slots()) == 3)
    first, second, _ = (slot.id for slot in engine.slots())
    for number in (second, first):  # the second one waits for the first
        assert engine.cancel(number)
    for request in (running, waiting):
        with pytest.raises(ClosedError, match="cancelled"):
            request.result()
    assert len(other.result().tokens) == 2
    assert not engine.cancel(first)


def test_a_waiting_request_is_served_before_an_older_one(engine: Engine) -> None:
    blocking = engine.submit("One day", ENDLESS, format=FOREVER, on_overflow="shift")
    eventually(lambda: [slot.state for slot in engine.slots()] == ["answer"])
    older, newer = engine.submit("Two", SHORT), engine.submit("Three", SHORT)
    eventually(lambda: len(engine.slots()) == 3)
    first, middle, last = engine.slots()
    assert engine.set_priority(last.id, 7)
    assert engine.set_priority(first.id, -7), "of one that runs"
    assert [slot.priority for slot in engine.slots()] == [-7, 0, 7]
    assert [request.key for request in engine._core.queue.waiting] == [2, 1]
    engine.cancel(first.id)
    for request in (newer, older):
        request.result()
    with pytest.raises(ClosedError):
        blocking.result()
    ends = [event["id"] for event in json.loads(engine.trace())["traceEvents"] if event["ph"] == "e"]
    assert ends == [str(slot.id) for slot in (first, last, middle)]
    assert not engine.set_priority(last.id, 1)


def test_a_priority_that_is_none(engine: Engine) -> None:
    running = engine.submit("One day", ENDLESS, format=FOREVER, on_overflow="shift")
    eventually(engine.slots)
    (slot,) = engine.slots()
    with pytest.raises(ConfigError, match="priority"):
        engine.set_priority(slot.id, 1 << 40)
    assert engine.slots()[0].priority == 0
    running.cancel()


@pytest.mark.parametrize("given", ["0", 0.0, None])
def test_what_is_no_number(engine: Engine, given: Any) -> None:
    with pytest.raises(ConfigError, match="named by its number, `id` of a slot, got"):
        engine.cancel(given)
    with pytest.raises(ConfigError, match="named by its number, `id` of a slot, got"):
        engine.set_priority(given, 1)
    with pytest.raises(ConfigError, match="priority"):
        engine.set_priority(1 << 30, given)


def test_a_closed_engine_steers_nothing(engine: Engine) -> None:
    engine.close()
    with pytest.raises(ClosedError):
        engine.cancel(0)
    with pytest.raises(ClosedError):
        engine.set_priority(0, 1)
