"""The application of config files, as on Kubernetes: streams and cancels through Ray Serve's proxy."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("ray.serve", reason="the extra `ray` is not installed")
httpx = pytest.importorskip("httpx", reason="the extra `server` is not installed")

from tests.ray.ray_environment import PATIENCE, ray_environment  # noqa: E402
from tests.ray.running import MARKS, RunningServer, running  # noqa: E402
from tests.ray.test_replicas import counter, stream, wait_until  # noqa: E402

pytestmark = MARKS


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    arguments = {
        "models_served": ["demo"], "models": str(tmp_path_factory.mktemp("store")), "num_parallel": 2,
        "context_length": 256,
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.ray.proxied", json.dumps(arguments)]
    with ray_environment() as variables, running(command, variables) as found:
        yield found


def test_chunks_come_while_the_answer_is_computed(server: RunningServer) -> None:
    """The answer has no end: whatever comes has come before it."""
    with stream(server, "Once upon a time") as answer:
        lines = answer.iter_lines()
        pieces = [json.loads(next(lines)) for _ in range(5)]
    assert all(piece["response"] and not piece["done"] for piece in pieces)
    with stream(server, "Once upon a time", num_predict=12) as answer:
        last: Any = [json.loads(line) for line in answer.iter_lines()][-1]
    assert (last["eval_count"], last["done_reason"]) == (12, "length")


def test_a_client_that_goes_frees_its_sequence(server: RunningServer) -> None:
    with stream(server, "One day", num_predict=1) as answer:
        answer.read()
    before = counter(server, "requests_total", 'outcome="cancelled"')
    with stream(server, "Once upon a time") as answer:
        next(answer.iter_lines())
    wait_until(lambda: counter(server, "requests_total", 'outcome="cancelled"') > before)
    wait_until(lambda: httpx.get(f"{server.url}/slots", timeout=PATIENCE).json() == [])
