"""What a request's line in the log says of what the client wrote and got not: fields, options, messages, tokens."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from ollama_engine.server.model_manager.loader import log_changed
from ollama_engine.server.model_manager.runner_options import RunnerOptions
from ollama_engine.server.requests.options import WITHOUT_EFFECT, read_options
from ollama_engine.server.settings import ServerSettings
from ollama_engine.store.stored_model import StoredModel

HELLO = [{"role": "user", "content": "Tell me of a fox."}]
SHORT = {"temperature": 0, "num_predict": 4}
GO = {
    "/api/chat": {"messages": HELLO, "stream": False, "options": SHORT},
    "/api/generate": {"prompt": "One day", "stream": False, "options": SHORT},
    "/api/embed": {"input": "a fox"},
    "/api/embeddings": {"prompt": "a fox"},
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 4},
    "/v1/completions": {"prompt": "One day", "max_tokens": 4},
    "/v1/embeddings": {"input": "a fox"},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 4},
    "/v1/messages": {"messages": HELLO, "max_tokens": 4},
}


def line_of(caplog: pytest.LogCaptureFixture, address: str, path: str, **body: Any) -> str:
    """The line that the log has of a request."""
    caplog.clear()
    with caplog.at_level("INFO", "ollama_engine"):
        answer = httpx.post(f"{address}{path}", json={"model": "demo"} | GO[path] | body, timeout=60)
        assert answer.status_code == 200, answer.text
        end = time.monotonic() + 30
        while not (found := [text for text in caplog.messages if text.startswith(f"POST {path} ")]):
            assert time.monotonic() < end, f"no line of {path} within 30 s, but {caplog.messages}"
            time.sleep(0.01)
    (line,) = found
    return line


def fact(line: str, name: str) -> str:
    """What a line says of `name=`."""
    assert f" {name}=" in line, f"{name} is missing: {line}"
    return line.partition(f" {name}=")[2].split()[0]


@pytest.mark.parametrize("path", GO)
def test_fields_without_effect(demo_server: str, caplog: pytest.LogCaptureFixture, path: str) -> None:
    assert "ignored" not in line_of(caplog, demo_server, path)
    line = line_of(caplog, demo_server, path, unknown=1, store=True, user="u", nothing=None)
    assert sorted(fact(line, "ignored").split(",")) == ["store", "unknown", "user"]


def test_fields_of_fields(demo_server: str, caplog: pytest.LogCaptureFixture) -> None:
    schema = {"name": "n", "strict": True, "schema": {"const": 1}}
    line = line_of(
        caplog, demo_server, "/v1/chat/completions", metadata={"a": "b"}, stream_options={"include_obfuscation": True},
        response_format={"type": "json_schema", "json_schema": schema},
    )  # fmt: skip
    assert " ignored=metadata,stream_options.include_obfuscation" in line
    assert "strict" not in line, "every schema is enforced"


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_options_without_effect(name: str) -> None:
    assert read_options({name: WITHOUT_EFFECT[name](1)}).ignored == (name,)


def test_options_of_a_request(demo_server: str, caplog: pytest.LogCaptureFixture) -> None:
    options = SHORT | {"numa": False, "use_mlock": True, "top_p": 1.5, "top_k": -1, "seed": 3, "warmth": 1}
    line = line_of(caplog, demo_server, "/api/generate", options=options)
    assert " ignored=warmth,numa,use_mlock clamped=top_p:1.5->1.0,top_k:-1->0 " in line
    assert " num_keep=512 " in line_of(caplog, demo_server, "/api/generate", options=SHORT | {"num_keep": 1000})


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_sees_which_options_were_clamped(demo_server: str, stream: bool) -> None:
    """A client that asks for more context than there is would wonder why its prompts are cut."""
    trained = httpx.post(f"{demo_server}/api/show", json={"model": "demo"}).json()["details"]["context_length"]
    body = {"model": "demo", "prompt": "x", "stream": stream, "options": SHORT | {"num_ctx": 10**12, "min_p": 2}}
    answer = httpx.post(f"{demo_server}/api/generate", json=body, timeout=60)
    assert answer.status_code == 200
    assert answer.headers["x-clamped-options"] == f"num_ctx:1000000000000->{trained},min_p:2.0->1.0"
    body["options"] = SHORT
    assert "x-clamped-options" not in httpx.post(f"{demo_server}/api/generate", json=body, timeout=60).headers


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"num_ctx": 10**12}, "num_ctx:1000000000000->512"),
        ({"num_ctx": 513.5}, "num_ctx:513->512"),
        ({"num_predict": 10**10}, "num_predict:10000000000->2147483647"),
        ({"top_k": -(10**10)}, "top_k:-10000000000->0"),
        ({"temperature": -1}, "temperature:-1.0->0.0"),
        ({"min_p": 2}, "min_p:2.0->1.0"),
        ({"typical_p": -0.5}, "typical_p:-0.5->0.0"),
        ({"repeat_penalty": 0}, "repeat_penalty:0.0->1.0"),
        ({"num_keep": -1}, "num_keep:-1->0"),
        ({"num_predict": 10**100}, "num_predict:10000000000000000000...->2147483647"),
        ({"temperature": -1.2345678901234567e-100}, "temperature:-1.2345678901234567e-100->0.0"),
    ],
)
def test_clamped(given: dict[str, Any], taken: str) -> None:
    assert read_options(given).clamped(512) == [taken]


def test_what_is_in_range_is_not_clamped() -> None:
    assert read_options({"num_ctx": 10**12}, {"num_ctx": 512}).clamped(512) == []
    assert read_options({"num_ctx": 4096, "seed": 10**30}).clamped(None) == []
    assert (
        read_options({"temperature": 0, "top_p": 1, "top_k": 0, "num_keep": 4, "repeat_penalty": 1}).clamped(None) == []
    )


def test_messages_that_are_dropped(demo_server: str, caplog: pytest.LogCaptureFixture) -> None:
    old = [{"role": "user", "content": f"{number} " * 100} for number in range(40)]
    line = line_of(caplog, demo_server, "/api/chat", messages=[*old, *HELLO])
    assert 0 < int(fact(line, "dropped_messages")) < 40
    assert "dropped" not in line_of(caplog, demo_server, "/api/chat")


@pytest.mark.parametrize("path", ["/api/generate", "/api/embed", "/api/embeddings"])
def test_tokens_that_are_dropped(demo_server: str, caplog: pytest.LogCaptureFixture, path: str) -> None:
    long = "One day a fox ran. " * 1000
    field = "input" if path == "/api/embed" else "prompt"
    line = line_of(caplog, demo_server, path, **{field: long})
    assert int(fact(line, "dropped_tokens")) > 1000


def test_a_context_that_is_dropped(demo_server: str, caplog: pytest.LogCaptureFixture) -> None:
    line = line_of(caplog, demo_server, "/api/generate", context=[5] * 1030)
    assert " dropped_context=6 " in line


def test_options_that_a_model_is_not_loaded_with(caplog: pytest.LogCaptureFixture) -> None:
    stored = StoredModel("m:latest", "0" * 64, 1, 0.0, Path("none"))
    given = RunnerOptions(num_ctx=5000, num_gpu=99, main_gpu=1)
    chosen = given.engine_options(ServerSettings(), has_gpu=False) | {"num_ctx": 4096}
    log_changed(stored, given, chosen)
    assert caplog.messages == [
        "m:latest: num_ctx is 4096 and not 5000: the model was trained for no more",
        "m:latest: num_gpu does nothing: this machine has no GPU",
        "m:latest: main_gpu does nothing: this machine has no GPU",
    ]
    caplog.clear()
    log_changed(stored, given, given.engine_options(ServerSettings(), has_gpu=True))
    assert caplog.messages == []
