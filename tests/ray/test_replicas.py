"""A server with two replicas of the demo model: the APIs, prefixes, clients that go, replicas that end."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.serve", reason="the extra `ray` is not installed")
httpx = pytest.importorskip("httpx", reason="the extra `server` is not installed")

from ollama_engine import Engine, SamplingParams, demo  # noqa: E402
from tests.ray.ray_environment import PATIENCE, kill  # noqa: E402
from tests.ray.running import MARKS, RunningServer, serving  # noqa: E402
from tests.support.waiting import eventually  # noqa: E402

pytestmark = MARKS

ENDLESS = {"format": {"type": "array", "minItems": 100_000, "items": {"enum": [1, 2, 3]}}}
"""Fields of a request whose answer has no end: a model that may write what it likes comes to one."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    store: Path = tmp_path_factory.mktemp("store")
    with serving(
        "demo", "--replicas", "2", "--replica-cpus", "1", "--num-parallel", "4", "--context-length", "512", "--models",
        str(store),
    ) as found:  # fmt: skip
        yield found


def chat(server: RunningServer, text: str, **options: Any) -> dict[str, Any]:
    body = {"model": "demo", "messages": [{"role": "user", "content": text}], "stream": False, "options": options}
    answer = httpx.post(f"{server.url}/api/chat", json=body, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def body(prompt: str, num_predict: int | None) -> dict[str, Any]:
    """A request for an answer of so many tokens at most; without an end for None."""
    options = {"temperature": 0, "num_predict": num_predict or 1_000_000}
    return {"model": "demo", "prompt": prompt, "raw": True, "options": options, **({} if num_predict else ENDLESS)}


def stream(server: RunningServer, prompt: str, num_predict: int | None = None) -> Any:
    wanted = body(prompt, num_predict)
    return httpx.stream("POST", f"{server.url}/api/generate", json=wanted, timeout=PATIENCE)


def counter(server: RunningServer, name: str, label: str = "") -> float:
    lines = httpx.get(f"{server.url}/metrics", timeout=PATIENCE).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"ollama_engine_{name}") and label in line)


def wait_until(true: Callable[[], bool]) -> None:
    eventually(true, PATIENCE)


def test_answers_are_those_of_the_engine(server: RunningServer) -> None:
    with Engine(demo.path(), num_ctx=512, threads=1) as engine:
        expected = engine.chat([{"role": "user", "content": "Hello"}], SamplingParams(temperature=0, max_tokens=20))
    assert chat(server, "Hello", temperature=0, num_predict=20)["message"]["content"] == expected.content
    with stream(server, "One day", num_predict=12) as answer:
        lines = [json.loads(line) for line in answer.iter_lines()]
    assert lines[-1]["eval_count"] == 12
    assert len(lines) > 2


def test_errors_arrive_as_they_are(server: RunningServer) -> None:
    refused = httpx.post(f"{server.url}/api/generate", json={"model": "none", "prompt": "x"}, timeout=PATIENCE)
    assert (refused.status_code, refused.json()) == (404, {"error": "model 'none' not found"})
    body = {"model": "demo", "prompt": "x" * 9000, "raw": True, "truncate": False, "shift": False}
    too_long = httpx.post(f"{server.url}/api/generate", json=body, timeout=PATIENCE)
    assert too_long.status_code == 400
    assert "exceeds the context length" in too_long.json()["error"]


def test_other_routes_ask_the_replicas(server: RunningServer) -> None:
    chat(server, "Hello", num_predict=1)
    found = httpx.post(f"{server.url}/api/embed", json={"model": "demo", "input": ["a", "b"]}, timeout=PATIENCE).json()
    assert [len(vector) for vector in found["embeddings"]] == [256, 256]
    assert [row["name"] for row in httpx.get(f"{server.url}/api/ps").json()["models"]] == ["demo:latest"]
    tokens = httpx.post(f"{server.url}/tokenize", json={"content": "One day"}, timeout=PATIENCE).json()["tokens"]
    assert len(tokens) == 2
    httpx.post(f"{server.url}/api/generate", json={"model": "demo", "keep_alive": 0}, timeout=PATIENCE)
    assert httpx.get(f"{server.url}/api/ps").json()["models"] == []
    assert chat(server, "Hello", num_predict=1)["done"]


def test_a_conversation_stays_with_the_replica_that_has_its_prefix(server: RunningServer) -> None:
    """With every second turn elsewhere, less than half of what is asked again would be there."""
    before, cached, asked = counter(server, "cached_tokens_total"), 0, 0
    for number in range(6):
        messages = [{"role": "user", "content": f"Story {number}: tell me of the fox and of the {number} bears."}]
        for turn in range(4):
            body = {"model": "demo", "messages": messages, "stream": False,
                    "options": {"num_predict": 8, "temperature": 0}}  # fmt: skip
            found = httpx.post(f"{server.url}/api/chat", json=body, timeout=PATIENCE).json()
            asked += cached
            cached = found["prompt_eval_count"]
            messages += [found["message"], {"role": "user", "content": f"And then, on day {turn}?"}]
        cached = 0
    assert counter(server, "cached_tokens_total") - before >= 0.9 * asked


def test_a_replica_that_ends_takes_only_what_it_had_begun(server: RunningServer) -> None:
    """Requests of which nothing has come are answered by another; clients that have seen text are told."""
    engines = server.replicas()
    assert len(engines) == 2
    begun, killed = threading.Semaphore(0), threading.Event()

    def long_answer(number: int) -> dict[str, Any]:
        with stream(server, f"Story {number}:") as answer:
            lines = answer.iter_lines()
            next(lines)
            begun.release()
            for line in lines:
                found: dict[str, Any] = json.loads(line)
                if "error" in found:
                    return found
                if killed.is_set() and number in surviving:
                    return {}
        raise AssertionError("an endless answer has ended")

    surviving: set[int] = set()
    with ThreadPoolExecutor(24) as pool:
        long = []
        for number in range(8):  # each comes to the replica that has fewer
            long.append(pool.submit(long_answer, number))
            assert begun.acquire(timeout=PATIENCE)
        # Both replicas are full of answers that do not end: these wait.
        short = [pool.submit(chat, server, f"Hello {number}", num_predict=4) for number in range(8)]
        kill(engines[0])
        killed.set()
        wait_until(lambda: sum(task.done() for task in long) == 4)
        told = [task.result()["error"] for task in long if task.done()]
        surviving.update(range(8))
        assert all(task.result(PATIENCE)["done"] for task in short)
        assert [task.result(PATIENCE) for task in long].count({}) == 4  # those of the other replica go on
    assert all("the replica that computed this answer has ended" in error for error in told)
    wait_until(lambda: len(server.replicas()) == 2)
    assert chat(server, "Hello", num_predict=2)["done"]


def test_a_second_program_does_not_replace_the_first(server: RunningServer) -> None:
    """An application of Ray Serve has one name in a cluster: it would be replaced, and end with the second program."""
    chat(server, "Hello", num_predict=1)
    command = [sys.executable, "-m", "ollama_engine", "serve", "demo", "--port", "0", "--replicas", "1"]
    found = subprocess.run(
        [*command, "--ray-address", server.cluster()], env=server.variables, capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert found.returncode == 2, found.stderr
    assert "--ray-address: that cluster serves an application 'ollama-engine' already" in found.stderr
    assert chat(server, "Hello", num_predict=1)["done"]


def test_a_client_that_goes_frees_its_sequence(server: RunningServer) -> None:
    chat(server, "Hello", num_predict=1)
    before = counter(server, "requests_total", 'outcome="cancelled"')
    with stream(server, "Once upon a time") as answer:
        next(answer.iter_lines())
    wait_until(lambda: counter(server, "requests_total", 'outcome="cancelled"') > before)
    assert httpx.get(f"{server.url}/slots", timeout=PATIENCE).json() == []
