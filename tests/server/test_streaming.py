"""Streamed responses: their status, their last words, and clients that leave."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from starlette.responses import Response

from ollama_engine.errors import EngineBusyError
from ollama_engine.runner.chat.results import ChatChunk
from ollama_engine.server.app import create_app
from ollama_engine.server.settings import ServerSettings
from ollama_engine.server.streaming import ENDING, streamed, while_connected
from tests.server.running import running
from tests.server.scripted import ScriptedModels
from tests.support.waiting import eventually, join

PATIENCE = 30


class Probe:
    """What became of the generators that answered."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.closed = threading.Event()

    async def chunks(self, kind: str) -> AsyncGenerator[bytes, None]:
        self.begun.set()
        try:
            if kind == "refused":
                raise EngineBusyError("too many")
            if kind == "silent":
                await asyncio.sleep(PATIENCE * 10)
            yield b"first\n"
            if kind == "broken":
                raise EngineBusyError("too many")
            if kind == "surprise":
                raise ZeroDivisionError("a secret path")
            while kind == "endless":
                yield b"more\n"
                await asyncio.sleep(0)
        finally:
            self.closed.set()

    async def value(self) -> None:
        async for _ in self.chunks("silent"):
            pass


@pytest.fixture(scope="module")
def app() -> FastAPI:
    made = create_app(ServerSettings(shutdown_timeout=5))

    @made.get("/probe/{kind}")
    async def probe(kind: str, request: Request) -> Response:
        made.state.probe = Probe()
        if kind == "whole":
            await while_connected(request, made.state.probe.value())
        return await streamed(made.state.probe.chunks(kind), "text/plain", last_words)

    return made


def last_words(error: Exception) -> bytes:
    return json.dumps({"error": type(error).__name__}).encode()


@pytest.fixture(scope="module")
def address(app: FastAPI) -> Iterator[str]:
    with running(app) as url:
        yield url


def test_a_stream_that_ends(address: str, app: FastAPI) -> None:
    answer = httpx.get(f"{address}/probe/good")
    assert (answer.status_code, answer.content) == (200, b"first\n")
    assert answer.headers["cache-control"] == "no-store"
    assert "content-length" not in answer.headers
    assert app.state.probe.closed.is_set()


def test_an_error_before_the_first_chunk_is_the_status(address: str, app: FastAPI) -> None:
    answer = httpx.get(f"{address}/probe/refused")
    told = "server busy, please try again.  maximum pending requests exceeded"
    assert (answer.status_code, answer.json()) == (503, {"error": told})
    assert app.state.probe.closed.is_set()


@pytest.mark.parametrize(("kind", "error"), [("broken", "EngineBusyError"), ("surprise", "ZeroDivisionError")])
def test_an_error_behind_it_is_the_last_line(address: str, kind: str, error: str) -> None:
    answer = httpx.get(f"{address}/probe/{kind}")
    assert answer.status_code == 200
    assert answer.content == b"first\n" + json.dumps({"error": error}).encode()


def test_the_log_says_what_the_last_line_keeps(address: str, caplog: pytest.LogCaptureFixture) -> None:
    httpx.get(f"{address}/probe/surprise")
    assert "a secret path" in caplog.text
    caplog.clear()
    httpx.get(f"{address}/probe/broken")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("kind", ["endless", "silent", "whole"])
def test_a_client_that_leaves_ends_the_work(address: str, app: FastAPI, kind: str) -> None:
    """Before the first chunk, between chunks, and where nothing is streamed."""
    app.state.probe = None
    url = httpx.URL(address)
    with socket.create_connection((url.host, url.port or 80), PATIENCE) as client:
        client.sendall(f"GET /probe/{kind} HTTP/1.1\r\nHost: {url.host}\r\n\r\n".encode())
        eventually(lambda: app.state.probe and app.state.probe.begun.is_set())
        if kind == "endless":
            assert client.recv(12) == b"HTTP/1.1 200"
    assert app.state.probe.closed.wait(PATIENCE)
    assert httpx.get(f"{address}/api/version").status_code == 200


class Endless(ScriptedModels):
    """A model that begins an answer and never ends it."""

    async def chat(self, messages: Sequence[object], params: Any, **options: Any) -> AsyncGenerator[ChatChunk, None]:
        self.asked.append(options)
        yield ChatChunk(content="Once")
        await asyncio.sleep(PATIENCE * 100)


ANSWERS: dict[str, tuple[str, dict[str, Any], Callable[[bytes], object]]] = {
    "Ollama": ("/api/chat", {}, lambda body: json.loads(body.splitlines()[-1])["error"]),
    "OpenAI": ("/v1/chat/completions", {}, lambda body: events_of(body)[-1]["error"]["message"]),
    "Responses": ("/v1/responses", {"input": "x"}, lambda body: events_of(body)[-1]["error"]["message"]),
    "Anthropic": ("/v1/messages", {"max_tokens": 9}, lambda body: events_of(body)[-1]["error"]["message"]),
    "whole": ("/api/chat", {"stream": False}, lambda body: json.loads(body)["error"]),
}


def events_of(body: bytes) -> list[Any]:
    return [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: ")]


def test_a_shutdown_ends_answers_with_an_error_and_logs_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    models: Any = Endless()
    bodies: dict[str, bytes] = {}

    def ask(name: str, address: str) -> None:
        path, fields, _ = ANSWERS[name]
        body = {"model": "scripted", "messages": [{"role": "user", "content": "x"}], "stream": True} | fields
        bodies[name] = httpx.post(address + path, json=body, timeout=PATIENCE).content

    with running(
        create_app(ServerSettings(shutdown_timeout=1, noprune=True), library=models, manager=models)
    ) as address:
        threads = [threading.Thread(target=ask, args=(name, address)) for name in ANSWERS]
        for thread in threads:
            thread.start()
        eventually(lambda: len(models.asked) == len(ANSWERS))
    for thread in threads:
        join(thread)
    assert {name: ANSWERS[name][2](body) for name, body in bodies.items()} == dict.fromkeys(ANSWERS, ENDING)
    assert "CancelledError" not in caplog.text
    assert not [record for record in caplog.records if record.levelname == "ERROR" and record.exc_info]


def test_what_a_shutdown_cancels_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Such as an upload whose client sends no more: uvicorn would log a traceback."""
    app = create_app(ServerSettings(shutdown_timeout=1))
    begun = threading.Event()

    @app.get("/probe")
    async def probe() -> None:
        begun.set()
        await asyncio.sleep(PATIENCE * 100)

    answers: list[httpx.Response] = []
    with running(app) as address:
        thread = threading.Thread(target=lambda: answers.append(httpx.get(f"{address}/probe", timeout=PATIENCE)))
        thread.start()
        assert begun.wait(PATIENCE)
    join(thread)
    assert (answers[0].status_code, answers[0].json()) == (503, {"error": ENDING})
    assert "CancelledError" not in caplog.text
