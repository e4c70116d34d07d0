"""The log as JSON: one object a line, with the fields of `extra`; what each backend says of the system."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest

from ollama_engine.cli.log_lines import JsonFormatter
from ollama_engine.cli.logs import log_formatter
from ollama_engine.errors import EngineError
from ollama_engine.ml.device.device import devices
from ollama_engine.ml.device.device_info import Device, system_line
from tests.cli.conftest import Result

Cli = Callable[..., Result]
RUN = ("run", "demo", "One day", "-n", "1", "-t", "1", "--temperature", "0")


@pytest.fixture
def as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_ENGINE_LOG_FORMAT", "json")


def written(**fields: Any) -> dict[str, Any]:
    known = {"name": "a.b", "levelno": 20, "levelname": "INFO", "created": 0.5, "msecs": 500}
    made = logging.makeLogRecord({**known, **fields})
    line = JsonFormatter().format(made)
    assert "\n" not in line
    found: dict[str, Any] = json.loads(line)
    return found


def test_every_backend_names_the_features_of_the_cpu(cli: Cli, as_json: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the second one of a process."""
    cpu = devices()[-1]
    for _ in range(2):
        monkeypatch.setenv("OLLAMA_ENGINE_LOG", "info")
        told = [json.loads(line) for line in cli(*RUN).err.splitlines()]
        (line,) = (line for line in told if line["message"].startswith("backend: "))
        assert f"features {cpu.feature_text}" in line["message"]
        assert line["devices"][-1]["features"] == dict(cpu.features)
        assert (line["threads"], line["level"], line["logger"]) == (1, "info", "ollama_engine.runner.load.loading")
        assert "handle" not in line["devices"][-1]


def test_run_and_doctor_say_it(cli: Cli) -> None:
    line = system_line(devices())
    assert devices()[-1].feature_text in line
    assert f"\nsystem: {line}\n" in cli(*RUN, "--verbose").err
    assert line in cli("doctor").out
    assert json.loads(cli("doctor", "--json").out)["system"] == line


def test_a_format_that_does_not_exist(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_ENGINE_LOG_FORMAT", "xml")
    refused = cli("devices")
    assert refused.code == 2
    assert "OLLAMA_ENGINE_LOG_FORMAT is one of text, json, got 'xml'" in refused.err


def test_text_is_the_default() -> None:
    text = logging.Formatter()
    assert log_formatter(text) is text


def test_fields_of_a_line() -> None:
    device = Device("X0", "gpu", "X", 0, "a card", 8, 4, features={"A": "1"}, handle=5)
    many = (1.5, float("nan"), None)
    found = written(msg="a %s\nb", args=("text",), device=device, many=many, text="\u2028", other=b"x")
    assert found["time"] == "1970-01-01T00:00:00.500Z"
    assert (found["level"], found["logger"], found["message"]) == ("info", "a.b", "a text\nb")
    assert found["device"] == {
        "name": "X0", "kind": "gpu", "library": "X", "index": 0, "description": "a card", "memory_total": 8,
        "memory_free": 4, "id": None, "features": {"A": "1"},
    }  # fmt: skip
    assert (found["many"], found["text"], found["other"]) == ([1.5, "nan", None], "\u2028", "b'x'")
    own = {name for name in found if not name.startswith("_ray_")}  # Ray adds one to every record, where it has run
    assert own == {"time", "level", "logger", "message", "device", "many", "text", "other"}


def test_an_exception_is_in_the_same_line() -> None:
    try:
        raise EngineError("it failed")
    except EngineError:
        found = written(msg="no", exc_info=sys.exc_info())
    assert "EngineError: it failed" in found["exception"]


def test_a_worker_tells_no_features() -> None:
    far, near = Device("RPC0", "gpu", "RPC", 0, "a card far away", 8, 4), Device("CPU", "cpu", "CPU", 0, "a CPU", 8, 4)
    assert system_line([far, near], 3) == "RPC0 (a card far away); CPU (a CPU, features none); 3 threads"
