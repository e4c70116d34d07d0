"""Settings from Ollama's environment variables."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from ollama_engine.errors import ConfigError
from ollama_engine.server.app import create_app
from ollama_engine.server.durations import duration, keep_alive, timestamp
from ollama_engine.server.program import make_server
from ollama_engine.server.settings import SETTINGS, ServerSettings

ADDRESSES = [
    ("127.0.0.1", ("127.0.0.1", 11434)), ("0.0.0.0:80", ("0.0.0.0", 80)), (":8080", ("127.0.0.1", 8080)),
    ("example.org", ("example.org", 11434)), ("http://example.org", ("example.org", 80)),
    ("https://example.org", ("example.org", 443)), ("https://example.org:1/v1", ("example.org", 1)),
    ("[::1]", ("::1", 11434)), ("[::1]:5", ("::1", 5)), ("::1", ("::1", 11434)), ("http://:0", ("127.0.0.1", 0)),
    (' "1.2.3.4:5" ', ("1.2.3.4", 5)), ("''", ("127.0.0.1", 11434)),
]  # fmt: skip

GOOD: list[tuple[str, str, Any]] = [
    ("origins", "https://a.example, *", ("https://a.example", "*")),
    ("models", "'/data/models'", Path("/data/models")), ("models", "~/models", Path.home() / "models"),
    ("keep_alive", "10m", 600), ("keep_alive", "-1", math.inf), ("keep_alive", "0", 0), ("keep_alive", "1h30m", 5400),
    ("keep_alive", "90", 90), ("num_parallel", "4", 4), ("max_loaded_models", "0", 0), ("max_queue", "7", 7),
    ("context_length", "8192", 8192), ("kv_cache_type", "q8_0", "q8_0"), ("flash_attention", "1", "on"),
    ("flash_attention", "false", "off"), ("flash_attention", "AUTO", "auto"), ("multiuser_cache", "true", True),
    ("load_timeout", "0", math.inf), ("load_timeout", "30s", 30), ("debug", "1", 1), ("debug", "true", 1),
    ("debug", "2", 2), ("isolation", "process", "process"), ("api_keys", "a,b", ("a", "b")), ("max_body", "10", 10),
    ("max_body", "1.5 MiB", 3 << 19), ("prefix_store_bytes", "4GiB", 4 << 30), ("expert_cache_bytes", "0", 0),
    ("max_body", "8388607T", (2**23 - 1) << 40), ("max_body", str(2**63 - 1), 2**63 - 1),
    ("devices", "rpc://a:1, CUDA0", ("rpc://a:1", "CUDA0")),
    ("read_timeout", "0", math.inf), ("shutdown_timeout", "500ms", 0.5), ("debug", "  ", 0),
]  # fmt: skip

BAD = [
    ("keep_alive", "soon"), ("keep_alive", "5 minutes"), ("keep_alive", "nan"), ("num_parallel", "0"),
    ("num_parallel", "-1"), ("num_parallel", "four"), ("max_queue", "1.5"), ("max_queue", "9" * 30),
    ("kv_cache_type", "q3"), ("flash_attention", "maybe"), ("debug", "3"), ("isolation", "thread"),
    ("multiuser_cache", "2"), ("devices", "rpc://a:0"), ("devices", "rpc://"),
    ("max_body", "0"), ("prefix_store_bytes", "much"), ("prefix_store_bytes", "-1"), ("max_body", "9" * 30),
    ("models", "~nobody2/models"),
    ("prefix_store_bytes", "1.5"), ("prefix_store_bytes", "1.5B"), ("max_body", "8388608T"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), ADDRESSES)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    found = ServerSettings.from_environment({"OLLAMA_HOST": text})
    assert (found.host, found.port) == expected


@pytest.mark.parametrize("text", ["host:port", "host:70000", "[::1]:x", "host:-1"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match=f"OLLAMA_HOST is HOST.* got '{text[:4]}".replace("[", r"\[")):
        ServerSettings.from_environment({"OLLAMA_HOST": text})


@pytest.mark.parametrize(("name", "text", "expected"), GOOD)
def test_values(name: str, text: str, expected: Any) -> None:
    assert getattr(ServerSettings.from_environment({SETTINGS[name].variable: text}), name) == expected


@pytest.mark.parametrize(("name", "text"), BAD)
def test_wrong_values_say_what_was_expected(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"^{SETTINGS[name].variable} is .*, got '"):
        ServerSettings.from_environment({SETTINGS[name].variable: text})


def test_nothing_said_is_the_default() -> None:
    assert ServerSettings.from_environment({}) == ServerSettings()
    assert ServerSettings().prefix_store == "on"
    assert ServerSettings.from_environment({"OLLAMA_DEBUG": "1"}, debug=2).debug == 2


@pytest.mark.parametrize(("text", "seconds"), [
    ("5m", 300), ("1.5h", 5400), ("300ms", 0.3), ("-1.5h", -5400), ("2h45m", 9900), ("1us", 1e-6), ("1µs", 1e-6),
    ("0", 0), ("+5s", 5), (".5s", 0.5),
])  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "m", "5 m", "5x", "--5m", "5m-", "1e3s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        duration(text)


def test_keep_alive() -> None:
    given: list[Any] = [None, 5, 0, -1, "5m", "-1s", 1e30]
    assert [keep_alive(value) for value in given] == [None, 5, 0, math.inf, 300, math.inf, math.inf]


def test_timestamps() -> None:
    assert timestamp(1.5) == "1970-01-01T00:00:01.500000000Z"
    assert timestamp(4e9) == "2096-10-02T07:06:40.000000000Z"


def test_answers_may_have_all_the_time_they_take() -> None:
    settings = ServerSettings.from_environment({"OLLAMA_ENGINE_SHUTDOWN_TIMEOUT": "-1"})
    assert make_server(settings, create_app(settings), print).config.timeout_graceful_shutdown is None
