"""ps and stop, which ask a running server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the extra `server` is not installed")
pytest.importorskip("uvicorn", reason="the extra `server` is not installed")

from ollama_engine.cli.serving.ps import _processor
from ollama_engine.cli.serving.server_client import ask, server_url
from ollama_engine.server.app import create_app
from ollama_engine.server.settings import ServerSettings
from tests.cli.conftest import Result
from tests.server.running import running

Cli = Callable[..., Result]


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with running(create_app(ServerSettings(models=tmp_path, context_length=256, shutdown_timeout=5))) as address:
        monkeypatch.setenv("OLLAMA_HOST", address)
        yield address


def test_ps_and_stop(cli: Cli, address: str) -> None:
    assert cli("ps").out == "NAME    ID    SIZE    PROCESSOR    CONTEXT    UNTIL\n"
    ask("/api/generate", {"model": "demo", "stream": False, "keep_alive": "2h"})
    head, row = cli("ps").out.splitlines()
    assert row.startswith("demo:latest ")
    assert row[head.index("PROCESSOR") :].split() == ["100%", "CPU", "256", "1", "hour", "from", "now"]
    assert json.loads(cli("ps", "--json").out)["models"][0]["name"] == "demo:latest"
    ask("/api/generate", {"model": "demo", "stream": False, "keep_alive": -1})
    assert cli("ps").out.splitlines()[1].endswith("Forever")
    assert cli("stop", "demo") == Result(0, "stopped demo\n", "")
    assert len(cli("ps").out.splitlines()) == 1
    unknown = cli("stop", "nothing")
    assert (unknown.code, "not found" in unknown.err) == (1, True)


def test_a_server_with_keys_behind_no_proxy(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(create_app(ServerSettings(models=tmp_path, api_keys=("first", "second")))) as address:
        monkeypatch.setenv("OLLAMA_HOST", address)
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        refused = cli("ps")
        assert (refused.code, "unauthorized" in refused.err) == (1, True)
        monkeypatch.setenv("OLLAMA_ENGINE_API_KEYS", "second, other")
        assert cli("ps").out.startswith("NAME ")


def test_no_server(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")
    told = cli("ps")
    assert told.code == 1
    assert "no server answers at http://127.0.0.1:1 (" in told.err
    assert "ollama-engine serve starts one" in told.err


@pytest.mark.parametrize(("text", "url"), [
    ("", "http://127.0.0.1:11434"), (" 'example.org' ", "http://example.org:11434"), ("0.0.0.0:80", "http://127.0.0.1:80"),
    ("https://example.org", "https://example.org:443"), ("[::1]:5", "http://[::1]:5"), ("[::]", "http://[::1]:11434"),
])  # fmt: skip
def test_address(monkeypatch: pytest.MonkeyPatch, text: str, url: str) -> None:
    monkeypatch.setenv("OLLAMA_HOST", text)
    assert server_url() == url


def test_processor() -> None:
    assert [_processor(100, gpu) for gpu in (0, 25, 100)] == ["100% CPU", "75%/25% CPU/GPU", "100% GPU"]
