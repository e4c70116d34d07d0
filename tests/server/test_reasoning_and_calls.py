"""Reasoning, calls of tools and errors behind the first chunk, in all three forms that OpenAI and Anthropic have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from ollama_engine.errors import ChatError, ClosedError, ComputeError, EngineBusyError, ModelProcessError, Option
from ollama_engine.server.app import create_app
from ollama_engine.server.settings import ServerSettings
from ollama_engine.store.stored_model import StoredModel
from tests.chat.dialects.examples import EXAMPLES
from tests.server.running import running
from tests.server.scripted import ScriptedModels

PARAMETERS = {
    "weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "get_time": {"type": "object", "properties": {}},
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": own}} for name, own in PARAMETERS.items()]
FLAT = [{"type": "function", "name": name, "parameters": own} for name, own in PARAMETERS.items()]
OF_ANTHROPIC = [{"name": name, "input_schema": own} for name, own in PARAMETERS.items()]
CALLS = [("weather", {"city": "Paris", "days": 3}), ("get_time", {})]
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "Hello"}], "tools": TOOLS}
RESPONSE = {"model": "scripted", "input": "Hello", "tools": FLAT}
MESSAGE = {"model": "scripted", "messages": CHAT["messages"], "max_tokens": 100, "tools": OF_ANTHROPIC}
ASKS = {"/v1/chat/completions": CHAT, "/v1/responses": RESPONSE, "/v1/messages": MESSAGE}
THINK = Option("think", "high")


def app(models: ScriptedModels, **options: Any) -> Any:
    library: Any = models
    return create_app(
        ServerSettings(models=Path("/nowhere"), noprune=True, **options), library=library, manager=library
    )


@contextmanager
def client_of(models: ScriptedModels, **options: Any) -> Iterator[TestClient]:
    with TestClient(app(models, **options), base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client


def asked(models: ScriptedModels, path: str, **change: Any) -> Any:
    with client_of(models) as client:
        response = client.post(path, json=ASKS[path] | change)
        assert response.status_code == 200, response.text
        return response.json()


def test_chat_completion_has_reasoning_and_calls() -> None:
    found = asked(ScriptedModels(EXAMPLES["hermes"]), "/v1/chat/completions")
    choice, usage = found["choices"][0], found["usage"]
    message = choice["message"]
    assert message["content"].strip() == "Let me look."
    assert message["reasoning_content"].strip() == message["reasoning"].strip() == "They ask."
    assert [
        (call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message["tool_calls"]
    ] == (CALLS)
    assert choice["finish_reason"] == "tool_calls"
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}
    assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]


def test_response_has_items_for_reasoning_and_calls() -> None:
    found = asked(ScriptedModels(EXAMPLES["hermes"]), "/v1/responses")
    assert [item["type"] for item in found["output"]] == ["reasoning", "message", "function_call", "function_call"]
    reasoning, message, *calls = found["output"]
    assert reasoning["content"][0]["text"].strip() == "They ask."
    assert message["content"][0]["text"].strip() == "Let me look."
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == CALLS
    assert {item["status"] for item in found["output"]} == {"completed"} == {found["status"]}
    assert found["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


def test_message_has_blocks_for_thinking_and_calls() -> None:
    found = asked(ScriptedModels(EXAMPLES["hermes"]), "/v1/messages", thinking={"type": "enabled", "budget_tokens": 9})
    thinking, text, *calls = found["content"]
    assert thinking["thinking"].strip() == "They ask."
    assert text["text"].strip() == "Let me look."
    assert [(call["name"], call["input"]) for call in calls] == CALLS
    assert found["stop_reason"] == "tool_use"
    assert found["usage"] == {
        "input_tokens": 6, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 0,
        "output_tokens": found["usage"]["output_tokens"],
    }  # fmt: skip


def test_published_clients_read_the_streams() -> None:
    openai = pytest.importorskip("openai", reason="extra: clients")
    anthropic = pytest.importorskip("anthropic", reason="extra: clients")
    with running(app(ScriptedModels(EXAMPLES["hermes"]))) as address:
        with openai.OpenAI(base_url=address + "/v1", api_key="any", max_retries=0) as client:
            with client.chat.completions.stream(**CHAT) as stream:
                message = stream.get_final_completion().choices[0].message
            told = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls]
            assert told == CALLS
            with client.responses.stream(**RESPONSE) as stream:
                output = stream.get_final_response().output
            assert [(item.name, json.loads(item.arguments)) for item in output[2:]] == CALLS
            assert output[0].content[0].text.strip() == "They ask."
        with anthropic.Anthropic(base_url=address, api_key="any", max_retries=0) as client:
            with client.messages.stream(**MESSAGE) as stream:
                final = stream.get_final_message()
            assert [block.type for block in final.content] == ["thinking", "text", "tool_use", "tool_use"]
            assert [(block.name, block.input) for block in final.content[2:]] == CALLS
            assert (final.usage.input_tokens, final.usage.cache_read_input_tokens) == (6, 4)
            assert [model.id for model in client.models.list()] == ["scripted:latest"]


@pytest.mark.parametrize("path", ASKS)
def test_malformed_call_is_content(path: str) -> None:
    text = '<tool_call>\n{"name": "nothing", "arguments": {}}\n</tool_call>'
    found = json.dumps(asked(ScriptedModels(text), path), ensure_ascii=False)
    assert json.dumps(text)[1:-1] in found
    cut = '<tool_call>\n{"name": "weather", "arguments": {"city": "Par'
    models = ScriptedModels(cut, finish_reason="length")
    assert json.dumps(cut)[1:-1] in json.dumps(asked(models, path))
    with client_of(models) as client:
        stream = client.post(path, json=ASKS[path] | {"stream": True}).text
    assert "max_tokens" in stream or "length" in stream or "incomplete" in stream


@pytest.mark.parametrize("path", ASKS)
@pytest.mark.parametrize(
    ("error", "status", "kinds"),
    [
        (EngineBusyError("the queue is full"), 503, ("server_error", "overloaded_error")),
        (ComputeError("the device is gone"), 500, ("server_error", "api_error")),
        (ModelProcessError("the process has ended"), 500, ("server_error", "api_error")),
        (ClosedError("the model was unloaded"), 500, ("server_error", "api_error")),
    ],
)
def test_errors_before_and_behind_the_first_chunk(path: str, error: Exception, status: int, kinds: Any) -> None:
    with client_of(ScriptedModels("", error=error)) as client:
        for stream in (False, True):
            response = client.post(path, json=ASKS[path] | {"stream": stream})
            assert response.status_code == status
            assert response.json()["error"]["type"] in kinds
    models = ScriptedModels("Hello", error=error)
    with client_of(models) as client:
        assert client.post(path, json=ASKS[path]).status_code == status
        response = client.post(path, json=ASKS[path] | {"stream": True})
    assert response.status_code == 200
    last = json.loads(response.text.strip().split("\n")[-1].removeprefix("data: "))
    assert (last.get("response") or last)["error"]["message"]
    assert models.closed == 2


def test_efforts_are_levels_or_a_switch() -> None:
    models = ScriptedModels(refused={"high": ChatError(THINK, ": no levels")})
    asked(models, "/v1/chat/completions", reasoning_effort="high")
    assert [chat["think"] for chat in models.asked] == [("high", True)]
    models = ScriptedModels()
    asked(models, "/v1/chat/completions", reasoning={"effort": "minimal"})
    asked(models, "/v1/responses", reasoning={"effort": "none"})
    asked(models, "/v1/chat/completions")
    assert [chat["think"] for chat in models.asked] == [("low", True), (False, None), (None,)]
    always = ScriptedModels(refused={False: ChatError(Option("think", "False"), ": it always reasons")})
    asked(always, "/v1/messages")
    assert [chat["think"] for chat in always.asked] == [(False, None)]
    never = ScriptedModels(refused=dict.fromkeys(("high", True), ChatError(THINK, ": it does not reason")))
    with client_of(never) as client:
        response = client.post("/v1/chat/completions", json=CHAT | {"reasoning_effort": "high"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "reasoning_effort"


def test_stored_defaults_stand_below_the_request() -> None:
    models = ScriptedModels()
    models.stored = StoredModel(
        "scripted:latest", "0" * 64, 1, 0.0, Path("none"), system="Be brief",
        parameters={"temperature": 0.5, "stop": ["END"], "num_predict": 7, "seed": -1, "num_ctx": 512},
        messages=({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}),
    )  # fmt: skip
    asked(models, "/v1/chat/completions")
    asked(models, "/v1/chat/completions", temperature=0.25, max_completion_tokens=3, seed=4, stop="X", top_k=2)
    system = [{"role": "system", "content": "Be loud"}, *CHAT["messages"]]
    asked(models, "/v1/chat/completions", messages=system)
    below, above, own = models.asked
    assert [message["role"] for message in below["messages"]] == ["system", "user", "assistant", "user"]
    assert below["messages"][0]["content"] == "Be brief"
    params = below["params"]
    assert (params.temperature, params.top_p, params.stop, params.max_tokens, params.seed) == (
        0.5,
        1,
        ("END",),
        7,
        None,
    )
    params = above["params"]
    assert (params.temperature, params.stop, params.max_tokens, params.seed, params.top_k) == (0.25, ("X",), 3, 4, 2)
    assert [message["content"] for message in own["messages"] if message["role"] == "system"] == ["Be loud"]


@pytest.mark.parametrize("path", ASKS)
def test_keys_are_asked_for_in_the_form_of_the_api(path: str) -> None:
    with client_of(ScriptedModels(), api_keys=("secret",)) as client:
        refused = client.post(path, json=ASKS[path])
        assert refused.status_code == 401
        assert refused.json()["error"]["type"] == "authentication_error"
        assert client.post(path, json=ASKS[path], headers={"x-api-key": "secret"}).status_code == 200
        assert client.post(path, json=ASKS[path], headers={"Authorization": "Bearer secret"}).status_code == 200


def test_a_delta_has_one_entry_for_a_call() -> None:
    """Clients of 2025 keep only the last one of several with the same index."""
    with running(app(ScriptedModels(EXAMPLES["hermes"]))) as address:
        answer = httpx.post(address + "/v1/chat/completions", json={**CHAT, "stream": True}, timeout=60)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    calls = [choice["delta"].get("tool_calls", []) for event in events for choice in event["choices"]]
    assert any(calls)
    for entries in calls:
        assert len({entry["index"] for entry in entries}) == len(entries)
