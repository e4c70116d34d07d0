"""Which web sites may have a visitor's browser call the server."""

from __future__ import annotations

import httpx
import pytest

from ollama_engine.server.app import create_app
from ollama_engine.server.safety.browsers import is_loopback
from ollama_engine.server.settings import ServerSettings
from tests.server.running import running

HERE = ["localhost", "LOCALHOST:1", "127.0.0.1:11434", "[::1]:80", "0.0.0.0", "192.168.1.7", "box.local",
        "host.docker.internal", "a.localhost"]  # fmt: skip
ELSEWHERE = ["evil.example", "evil.example:11434", "localhost.evil.example", "8.8.8.8", "127.0.0.1.evil.example",
             "evillocalhost", "local"]  # fmt: skip
ALLOWED = ["http://localhost", "http://localhost:3000", "https://127.0.0.1:8443", "http://0.0.0.0:1", "app://-",
           "vscode-webview://abc", "tauri://localhost", "chrome-extension://abcdef"]  # fmt: skip
REFUSED = ["https://evil.example", "null", "http://localhost.evil.example", "http://localhost:1.evil.example#",
           "https://evil.example/localhost", "httpx://localhost"]  # fmt: skip


@pytest.mark.parametrize("host", HERE)
def test_names_of_this_machine(demo_server: str, host: str) -> None:
    assert httpx.get(f"{demo_server}/api/version", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ELSEWHERE)
def test_a_rebound_name_is_refused(demo_server: str, host: str) -> None:
    refused = httpx.get(f"{demo_server}/api/version", headers={"Host": host})
    assert refused.status_code == 403
    assert "own machine" in refused.json()["error"]


def test_a_server_for_all_answers_to_every_name(demo_server: str) -> None:
    with running(create_app(ServerSettings(host="0.0.0.0"))) as address:
        assert httpx.get(f"{address}/api/version", headers={"Host": "models.example"}).status_code == 200


@pytest.mark.parametrize("origin", ALLOWED)
def test_origins_of_this_machine(demo_server: str, origin: str) -> None:
    answer = httpx.get(f"{demo_server}/api/version", headers={"Origin": origin})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == origin
    assert "Origin" in answer.headers["vary"]


@pytest.mark.parametrize("origin", REFUSED)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_other_origins_are_refused(demo_server: str, origin: str, method: str) -> None:
    answer = httpx.request(method, f"{demo_server}/api/generate", headers={"Origin": origin}, content=b"{}")
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


def test_the_origin_of_the_server_itself(demo_server: str) -> None:
    assert httpx.get(f"{demo_server}/api/version", headers={"Origin": demo_server}).status_code == 200


def test_preflight(demo_server: str) -> None:
    asking = {
        "Origin": "http://localhost:3000",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type, x-stainless-lang",
    }
    answer = httpx.options(f"{demo_server}/api/chat", headers=asking)
    assert answer.status_code == 204
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == "content-type, x-stainless-lang"


def test_origins_of_the_settings() -> None:
    settings = ServerSettings(origins=("https://*.example.org", "http://one.example"))
    with running(create_app(settings)) as address:
        found = {
            origin: httpx.get(f"{address}/api/version", headers={"Origin": origin}).status_code
            for origin in ("https://a.example.org", "http://one.example", "http://a.example.org", "http://onexexample")
        }
    assert list(found.values()) == [200, 200, 403, 403]


def test_an_error_can_be_read_by_the_page_too(demo_server: str) -> None:
    answer = httpx.get(f"{demo_server}/no/such/path", headers={"Origin": "http://localhost:3000"})
    assert answer.status_code == 404
    assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"


@pytest.mark.parametrize(("host", "found"), [
    ("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
    ("192.168.0.1", False), ("example.org", False),
])  # fmt: skip
def test_loopback(host: str, found: bool) -> None:
    assert is_loopback(host) is found
