"""What no good client does: it gets the documented errors, and the engine keeps answering."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from ollama_engine.server.app import create_app
from ollama_engine.server.settings import ServerSettings
from tests.server.ollama.asking import ask, idle, post
from tests.server.running import running
from tests.support.suite import scaled
from tests.support.waiting import eventually, join

PATIENCE = 50
TEN_MEGABYTES = 10_000_000
SHORT = {"num_predict": 2, "temperature": 0}
DIGITS = {"type": "array", "minItems": 100_000, "items": {"enum": [1, 2, 3]}}


def connected(address: str) -> socket.socket:
    parts = urlsplit(address)
    return socket.create_connection((str(parts.hostname), parts.port or 80), timeout=PATIENCE)


def request_of(body: Any, path: str = "/api/generate") -> bytes:
    content = json.dumps(body).encode()
    return b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (
        path.encode(),
        len(content),
        content,
    )


@contextmanager
def others_are_answered(address: str, within: float) -> Iterator[None]:
    """Ask for something small all the time; none of it may take longer than `within` seconds."""
    ended, worst = threading.Event(), [0.0]

    def ask_on() -> None:
        while not ended.wait(0.02):
            started = time.perf_counter()
            assert httpx.get(f"{address}/api/version", timeout=PATIENCE).status_code == 200
            worst[0] = max(worst[0], time.perf_counter() - started)

    asking = threading.Thread(target=ask_on)
    asking.start()
    try:
        yield
    finally:
        ended.set()
        join(asking)
    assert worst[0] < within


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["prompt", "messages", "context"])
def test_ten_megabytes(demo_server: str, kind: str) -> None:
    text = "One day a fox ran. " * (TEN_MEGABYTES // 19)
    body: dict[str, Any] = {
        "prompt": {"prompt": text, "truncate": False},
        "messages": {"messages": [{"role": "user", "content": "hello there " * 100}] * (TEN_MEGABYTES // 1240)},
        "context": {"prompt": "x", "context": [2000] * 250_000},
    }[kind] | {"model": "demo", "stream": False, "options": SHORT}
    with others_are_answered(demo_server, within=30):
        answer = post(demo_server, "chat" if kind == "messages" else "generate", body)
    if kind == "prompt":
        assert answer.status_code == 400
        assert answer.json()["error"] == "the input length exceeds the context length"
    else:
        assert answer.json().get("eval_count") == 2, answer.text[:300]
    assert ask(demo_server, "generate", prompt="x", options=SHORT)["eval_count"] == 2


def test_a_client_that_closes_one_half(demo_server: str) -> None:
    """It says that it sends no more, which is also what a client does that is gone: its request is cancelled."""
    body = {"model": "demo", "prompt": "One day", "raw": True, "format": DIGITS, "options": {"num_predict": 900}}
    with connected(demo_server) as client:
        client.sendall(request_of(body))
        assert client.recv(12) == b"HTTP/1.1 200"
        client.shutdown(socket.SHUT_WR)
        assert idle(demo_server)


def test_a_client_that_reads_nothing(demo_server: str) -> None:
    """It holds up nobody else, and is forgotten when it leaves."""
    body = {"model": "demo", "prompt": "One day", "raw": True, "format": DIGITS, "options": {"num_predict": 900},
            "logprobs": True, "top_logprobs": 20}  # fmt: skip
    with ExitStack() as stack:
        for _ in range(3):
            client = stack.enter_context(connected(demo_server))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(request_of(body))
        assert ask(demo_server, "generate", prompt="x", options=SHORT)["eval_count"] == 2
    assert idle(demo_server)


def test_a_client_that_goes_in_the_middle_of_its_request(demo_server: str) -> None:
    for cut in (10, 60, 90):
        with connected(demo_server) as client:
            client.sendall(request_of({"model": "demo", "prompt": "x"})[:cut])
    assert ask(demo_server, "generate", prompt="x", options=SHORT)["eval_count"] == 2


def test_pipelined_requests(demo_server: str) -> None:
    body = {"model": "demo", "prompt": "x", "raw": True, "stream": False, "options": SHORT}
    with connected(demo_server) as client:
        client.sendall(request_of(body) * 3)
        received = b""
        while received.count(b'"done_reason"') < 3:
            data = client.recv(1 << 16)
            assert data, received
            received += data
    assert received.count(b"HTTP/1.1 200") == 3


def test_many_sockets(demo_server: str) -> None:
    """Most say nothing; the others are answered."""
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(demo_server)) for _ in range(scaled(1000, quick=200))]
        assert ask(demo_server, "generate", prompt="x", options=SHORT)["eval_count"] == 2
        for client in clients[:50]:
            client.sendall(b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert all(client.recv(12) == b"HTTP/1.1 200" for client in clients[:50])


def test_more_than_may_wait_get_503() -> None:
    settings = ServerSettings(num_parallel=1, max_queue=2, context_length=512, shutdown_timeout=5)
    body = {"model": "demo", "prompt": "One day", "raw": True, "format": DIGITS, "options": {"num_predict": 100_000}}
    with running(create_app(settings)) as address, ExitStack() as stack:
        ask(address, "generate")
        first = stack.enter_context(connected(address))
        first.sendall(request_of(body))
        assert first.recv(12) == b"HTTP/1.1 200"
        answers: list[int] = []

        def follow() -> None:
            answer = post(address, "generate", body | {"stream": False, "options": {"num_predict": 4}})
            answers.append(answer.status_code)
            if answer.status_code == 503:
                told = "server busy, please try again.  maximum pending requests exceeded"
                assert answer.json() == {"error": told}

        threads = [threading.Thread(target=follow) for _ in range(12)]
        for thread in threads:
            thread.start()
        eventually(lambda: len(answers) == 10)  # the first one goes on, and two wait for it
        first.close()
        join(*threads)
    assert sorted(answers) == [200] * 2 + [503] * 10
