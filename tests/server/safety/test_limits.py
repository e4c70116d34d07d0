"""Keys, and the limits of what clients send."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from ollama_engine.server.app import create_app
from ollama_engine.server.safety.http_protocol import LARGEST_HEAD
from ollama_engine.server.settings import ServerSettings
from tests.server.running import running

PATIENCE = 30
GENERATE = b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def strict() -> Iterator[str]:
    """A server with keys that takes little."""
    with running(create_app(ServerSettings(api_keys=("first", "second"), max_body=10_000))) as address:
        yield address


@pytest.fixture(scope="module")
def impatient() -> Iterator[str]:
    """A server that does not wait long for the rest of a request."""
    with running(create_app(ServerSettings(read_timeout=0.5))) as address:
        yield address


def connected(address: str) -> socket.socket:
    parts = urlsplit(address)
    return socket.create_connection((str(parts.hostname), parts.port or 80), timeout=PATIENCE)


def answer_to(address: str, *sent: bytes) -> bytes:
    """All that comes until the server closes the connection."""
    with connected(address) as client:
        for data in sent:
            client.sendall(data)
        received = b""
        while data := client.recv(1 << 16):
            received += data
        return received


@pytest.mark.parametrize("headers", [
    {"Authorization": "Bearer first"}, {"authorization": "bearer second"}, {"X-Api-Key": "second"},
], ids=str)  # fmt: skip
def test_keys(strict: str, headers: dict[str, str]) -> None:
    assert httpx.get(f"{strict}/api/version", headers=headers).status_code == 200


@pytest.mark.parametrize("headers", [
    {}, {"Authorization": "Bearer third"}, {"Authorization": "Bearer"}, {"Authorization": "Basic first"},
    {"X-Api-Key": "firs"}, {"X-Api-Key": ""},
], ids=str)  # fmt: skip
def test_without_a_key(strict: str, headers: dict[str, str]) -> None:
    refused = httpx.get(f"{strict}/api/version", headers=headers)
    assert (refused.status_code, refused.json()) == (401, {"error": "unauthorized"})
    assert refused.headers["www-authenticate"] == "Bearer"
    assert httpx.get(f"{strict}/v1/models", headers=headers).json()["error"]["code"] == "invalid_api_key"


def test_pages_of_allowed_origins_may_read_why_they_are_refused(strict: str) -> None:
    origin = {"Origin": "http://localhost:3000"}
    for refused in (
        httpx.get(f"{strict}/api/version", headers=origin),
        httpx.post(f"{strict}/api/generate", content=b"x" * 10_001, headers=origin | {"X-Api-Key": "first"}),
    ):
        assert refused.status_code in (401, 413)
        assert refused.headers["access-control-allow-origin"] == "http://localhost:3000"


def test_whether_the_server_is_there_needs_no_key(strict: str) -> None:
    assert httpx.get(strict).text == "Ollama is running"


def test_a_large_body_is_refused(strict: str) -> None:
    for content in (b"x" * 10_001, iter([b"x" * 6000, b"x" * 6000])):
        refused = httpx.post(f"{strict}/api/generate", content=content, headers={"X-Api-Key": "first"})
        assert refused.status_code == 413
        assert "more than 10000 bytes" in refused.json()["error"]


def test_a_body_may_be_as_large_as_a_context_needs(demo_server: str) -> None:
    """The default limit. Nothing of a larger body is awaited."""
    head = GENERATE + b"Content-Length: %d\r\n\r\n"
    assert answer_to(demo_server, head % ((32 << 20) + 1)).startswith(b"HTTP/1.1 413 ")


def test_a_body_that_does_not_come(impatient: str) -> None:
    received = answer_to(impatient, GENERATE + b'Content-Length: 100\r\n\r\n{"model"')
    assert received.startswith(b"HTTP/1.1 408 ")
    assert json.loads(received.partition(b"\r\n\r\n")[2])["error"] == "the body of the request came too slowly"


def test_a_head_that_does_not_end(impatient: str) -> None:
    assert answer_to(impatient, GENERATE + b"X-Api-Key: fir").startswith(b"HTTP/1.1 408 ")
    assert answer_to(impatient).startswith(b"HTTP/1.1 408 ")


def test_a_later_head_that_does_not_end(impatient: str) -> None:
    first = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    received = answer_to(impatient, first + GENERATE)
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in received


def test_a_large_head(demo_server: str) -> None:
    fields = b"".join(b"X-%d: %s\r\n" % (number, b"x" * 1000) for number in range(LARGEST_HEAD // 1000 + 4))
    with connected(demo_server) as client:
        client.sendall(GENERATE + fields)
        assert client.recv(100).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "head", [b"X: " + b"x" * 100_000, b"\r\n".join(b"X-%d: y" % n for n in range(9_000))], ids=["one", "many"]
)
def test_a_large_head_that_comes_at_once(demo_server: str, head: bytes) -> None:
    received = answer_to(demo_server, GENERATE + head + b"\r\nContent-Length: 2\r\n\r\n{}")
    assert received.startswith(b"HTTP/1.1 431 ")
    assert received.count(b"HTTP/1.1") == 1


def test_no_http(demo_server: str) -> None:
    assert answer_to(demo_server, b"\x16\x03\x01 hello\r\n\r\n").startswith(b"HTTP/1.1 400 ")
