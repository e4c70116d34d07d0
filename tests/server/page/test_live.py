"""What the live view shows while models come and go."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from ollama_engine.errors import ClosedError, EngineError, ModelProcessError
from ollama_engine.server.page.routes import live
from tests.server.page.conftest import Drafting


@pytest.mark.parametrize("error", [ClosedError("unloaded"), ModelProcessError("crashed")], ids=["unloaded", "crashed"])
def test_a_model_that_is_gone_is_left_out(error: EngineError) -> None:
    async def metrics() -> None:
        raise error

    gone = SimpleNamespace(model=SimpleNamespace(metrics=metrics))
    service: Any = SimpleNamespace(manager=SimpleNamespace(loaded=lambda: [gone, gone]))
    assert asyncio.run(live(service)) == {"models": []}


def test_guesses_are_counted_in_the_live_view_the_metrics_and_the_timeline(drafting: Drafting) -> None:
    counts = drafting.engine.metrics
    expected = (counts.drafted_tokens, counts.accepted_tokens)
    (model,) = httpx.get(f"{drafting.address}/page/live").json()["models"]
    assert (model["metrics"]["drafted_tokens"], model["metrics"]["accepted_tokens"]) == expected
    metrics = httpx.get(f"{drafting.address}/metrics").text
    found = {
        name: int(float(value)) for name, value in re.findall(r"^ollama_engine_(\w+)_total\{.*\} (\S+)$", metrics, re.M)
    }
    assert (found["drafted_tokens"], found["accepted_tokens"]) == expected
    events = httpx.get(f"{drafting.address}/trace?model=demo").json()["traceEvents"]
    (row,) = (event["tid"] for event in events if event["name"] == "thread_name" and event["args"]["name"] == "wait")
    steps = [event["args"] for event in events if event["ph"] == "X" and event["tid"] == row]
    assert tuple(sum(step[name] for step in steps) for name in ("drafted_tokens", "accepted_tokens")) == expected
