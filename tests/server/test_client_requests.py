"""Requests as published client libraries send them, which OpenAI's, Anthropic's, Ollama's or vLLM's servers take.

The libraries themselves are in the tests of their APIs, where they are installed.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "One day"}]
VALUE = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
WEATHER: dict[str, Any] = {
    "name": "weather",
    "parameters": {
        "type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"],
        "additionalProperties": False,
    },
}  # fmt: skip
PARAMETERS = WEATHER["parameters"]


def post(address: str, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(address + path, json={"model": "demo", **body}, timeout=120)


def answer(address: str, path: str, body: dict[str, Any]) -> Any:
    found = post(address, path, body)
    assert found.status_code == 200, found.text
    return found.json()


# -- a format and tools: Agents SDK (output_type), pydantic-ai (NativeOutput), LangChain (ProviderStrategy) ------------


def of_chat(address: str, **how: Any) -> tuple[str, list[Any]]:
    tools = [{"type": "function", "function": WEATHER}]
    form = {"type": "json_schema", "json_schema": {"name": "Value", "schema": VALUE, "strict": True}}
    body = {"messages": HELLO, "tools": tools, "response_format": form, "max_tokens": 100, "temperature": 0, **how}
    message = answer(address, "/v1/chat/completions", body)["choices"][0]["message"]
    return message["content"], [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls", [])]


def of_response(address: str, **how: Any) -> tuple[str, list[Any]]:
    tools = [{"type": "function", **WEATHER, "strict": True}]
    form = {"type": "json_schema", "name": "Value", "schema": VALUE, "strict": True}
    body = {"input": "One day", "tools": tools, "text": {"format": form}, "max_output_tokens": 100, "temperature": 0}
    items = answer(address, "/v1/responses", body | how)["output"]
    texts = [part["text"] for item in items if item["type"] == "message" for part in item["content"]]
    return "".join(texts), [json.loads(item["arguments"]) for item in items if item["type"] == "function_call"]


def of_message(address: str, **how: Any) -> tuple[str, list[Any]]:
    tools = [{"name": WEATHER["name"], "input_schema": PARAMETERS}]
    form = {"type": "json_schema", "schema": VALUE}
    body = {"messages": HELLO, "tools": tools, "output_config": {"format": form}, "max_tokens": 100, "temperature": 0}
    blocks = answer(address, "/v1/messages", body | how)["content"]
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    return "".join(texts), [block["input"] for block in blocks if block["type"] == "tool_use"]


def of_ollama(address: str, **how: Any) -> tuple[str, list[Any]]:
    options = {"num_predict": 100, "temperature": 0}
    tools = [{"type": "function", "function": WEATHER}]
    body = {"messages": HELLO, "tools": tools, "format": VALUE, "options": options, "stream": False}
    message = answer(address, "/api/chat", body | how)["message"]
    return message["content"], [call["function"]["arguments"] for call in message.get("tool_calls", [])]


@pytest.mark.parametrize("ask", [of_chat, of_response, of_message, of_ollama])
def test_an_answer_with_a_format_and_tools_is_calls_or_a_value(demo_server: str, ask: Any) -> None:
    content, calls = ask(demo_server)
    assert bool(content) != bool(calls)
    assert all(call in ({"city": "Oslo"}, {"city": "Rome"}) for call in calls)
    assert calls or json.loads(content) in ({"a": 1}, {"a": 2})


@pytest.mark.parametrize(("ask", "choice"), [
    (of_chat, {"type": "function", "function": {"name": "weather"}}), (of_chat, "required"),
    (of_response, {"type": "function", "name": "weather"}), (of_message, {"type": "tool", "name": "weather"}),
], ids=["chat", "chat, any", "response", "message"])  # fmt: skip
def test_a_call_that_has_to_come_is_no_value(demo_server: str, ask: Any, choice: Any) -> None:
    content, calls = ask(demo_server, tool_choice=choice)
    assert not content
    assert all(call in ({"city": "Oslo"}, {"city": "Rome"}) for call in calls)
    assert len(calls) == 1 or choice == "required"


# -- forms of answers: vLLM's (outlines, guidance), SGLang's and llama.cpp's -------------------------------------------

FORMS: list[tuple[dict[str, Any], set[str]]] = [
    ({"structured_outputs": {"choice": ["yes", "no"]}}, {"yes", "no"}),
    ({"structured_outputs": {"regex": "[01]/[01]"}}, {"0/0", "0/1", "1/0", "1/1"}),
    ({"structured_outputs": {"json": {"enum": [1, 2]}}}, {"1", "2"}),
    ({"structured_outputs": {"grammar": 'root ::= "a" | "b"'}}, {"a", "b"}),
    ({"structured_outputs": {"grammar": 'start: "a" | "b"'}}, {"a", "b"}),
    ({"guided_choice": ["yes", "no"]}, {"yes", "no"}),
    ({"guided_json": '{"enum": [1, 2]}'}, {"1", "2"}),
    ({"guided_regex": "[01]"}, {"0", "1"}),
    ({"guided_grammar": 'root ::= "a" | "b"'}, {"a", "b"}),
    ({"regex": "[01]"}, {"0", "1"}),
    ({"ebnf": 'root ::= "a" | "b"'}, {"a", "b"}),
    ({"json_schema": {"enum": [1, 2]}}, {"1", "2"}),
    ({"grammar": 'root ::= "a" | "b"'}, {"a", "b"}),
]


@pytest.mark.parametrize(("asked", "values"), FORMS, ids=[str(asked) for asked, _ in FORMS])
def test_a_form_by_another_servers_name(demo_server: str, asked: dict[str, Any], values: set[str]) -> None:
    limits = {"max_tokens": 20, "temperature": 0}
    chat = answer(demo_server, "/v1/chat/completions", {"messages": HELLO, **limits, **asked})
    assert chat["choices"][0]["message"]["content"] in values
    text = answer(demo_server, "/v1/completions", {"prompt": "One day", **limits, **asked})
    assert text["choices"][0]["text"] in values


def test_an_answer_has_one_form(demo_server: str) -> None:
    body = {"messages": HELLO, "response_format": {"type": "json_object"}, "guided_regex": "a", "max_tokens": 4}
    refused = post(demo_server, "/v1/chat/completions", body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "guided_regex"
    assert "response_format and guided_regex: an answer has one form" in refused.json()["error"]["message"]
    wrong = post(demo_server, "/v1/chat/completions", {"messages": HELLO, "guided_regex": "(", "max_tokens": 4})
    assert wrong.status_code == 400


# -- numbers, nulls, texts ---------------------------------------------------------------------------------------------


def test_vllms_penalty_is_ours_over_all_tokens(demo_server: str) -> None:
    def said(**how: float) -> str:
        body = {"prompt": "One day One day One day", "max_tokens": 40, "temperature": 0, **how}
        return str(answer(demo_server, "/v1/completions", body)["choices"][0]["text"])

    ours = said(repeat_penalty=1.8, repeat_last_n=-1)
    assert said(repetition_penalty=1.8) == ours != said()
    assert said(repetition_penalty=1.8, repeat_last_n=2) == said(repeat_penalty=1.8, repeat_last_n=2) != ours
    both = post(demo_server, "/v1/completions", {"prompt": "One", "repetition_penalty": 1.1, "repeat_penalty": 1.2})
    assert (both.status_code, both.json()["error"]["param"]) == (400, "repetition_penalty")


@pytest.mark.parametrize("asked", [{"top_k": -1}, {"max_tokens": -1, "stop": ["."]}], ids=str)
def test_minus_one_is_no_limit(demo_server: str, asked: dict[str, Any]) -> None:
    same = {name: value for name, value in asked.items() if value != -1}
    limits = {"max_tokens": 8} if "stop" not in asked else {}
    for path, body in (("/v1/chat/completions", {"messages": HELLO}), ("/v1/completions", {"prompt": "One day"})):
        whole = {**body, **limits, "temperature": 0}
        found, without = answer(demo_server, path, whole | asked), answer(demo_server, path, whole | same)
        assert found["choices"] == without["choices"]


def test_null_is_a_field_of_ollamas_that_was_left_out(demo_server: str) -> None:
    short = {"num_predict": 4, "temperature": 0}
    nulls = dict.fromkeys(("suffix", "system", "template", "raw", "context", "images", "format", "think", "keep_alive"))
    asked = {"prompt": "One day", "stream": False, "options": short}
    found, plain = answer(demo_server, "/api/generate", asked | nulls), answer(demo_server, "/api/generate", asked)
    assert found["response"] == plain["response"]
    call = {"id": None, "function": {"index": None, "name": "weather", "arguments": None}}
    called = [*HELLO, {"role": "assistant", "content": None, "images": None, "tool_calls": [call]},
              {"role": "tool", "content": None, "tool_name": "weather", "tool_calls": None}]  # fmt: skip
    assert answer(demo_server, "/api/chat", {"messages": called, "stream": False, "options": short})["done"]
    refused = post(demo_server, "/api/chat", {"messages": [{"role": None, "content": "x"}]})
    assert refused.json() == {"error": "messages.0.role: Field required"}


def test_a_content_may_be_null(demo_server: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    said: list[dict[str, Any]] = [
        *HELLO, {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": None}, {"role": "user", "content": None},
    ]  # fmt: skip
    empty = [*HELLO, said[1], {**said[2], "content": ""}, {"role": "user", "content": ""}]
    limits = {"max_tokens": 4, "temperature": 0}
    found = answer(demo_server, "/v1/chat/completions", {"messages": said, **limits})
    assert found["choices"] == answer(demo_server, "/v1/chat/completions", {"messages": empty, **limits})["choices"]


def test_an_item_whose_type_is_null_is_a_message(demo_server: str) -> None:
    limits = {"max_output_tokens": 4, "temperature": 0}
    found, plain = (
        answer(demo_server, "/v1/responses", {"input": [{**kind, **HELLO[0]}], **limits})["output"]
        for kind in ({"type": None}, {})
    )
    assert found[0]["content"] == plain[0]["content"]


@pytest.mark.parametrize("stop", ["city", ['"', "}"]], ids=str)
def test_no_stop_text_cuts_a_forced_call(demo_server: str, stop: Any) -> None:
    """smolagents asks so."""
    tools = [{"type": "function", "function": WEATHER}]
    body = {"messages": HELLO, "tools": tools, "tool_choice": "required", "parallel_tool_calls": False, "stop": stop}
    found = answer(demo_server, "/v1/chat/completions", {**body, "max_tokens": 100, "temperature": 0})
    (call,) = found["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) in ({"city": "Oslo"}, {"city": "Rome"})


# -- reasoning, routes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("thinking", [{"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}], ids=str)
def test_thinking_does_nothing_where_the_model_does_not_reason(
    demo_server: str, thinking: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Anthropic's clients, such as Claude Code, ask every model for it; Ollama takes it, too."""
    body = {"messages": HELLO, "max_tokens": 4, "temperature": 0}
    with caplog.at_level("INFO", "ollama_engine"):
        found = answer(demo_server, "/v1/messages", {**body, "thinking": thinking})
    assert found["content"] == answer(demo_server, "/v1/messages", body)["content"]
    assert any("ignored=thinking" in record.getMessage() for record in caplog.records)
    counted = [answer(demo_server, "/v1/messages/count_tokens", {"messages": HELLO, **more})
               for more in ({"thinking": thinking}, {})]  # fmt: skip
    assert counted[0] == counted[1]


def test_an_effort_is_refused_by_its_name(demo_server: str) -> None:
    body = {"messages": HELLO, "reasoning_effort": "low"}
    said = post(demo_server, "/v1/chat/completions", body).json()["error"]["message"]
    assert said.startswith("reasoning_effort: the model does not reason")


@pytest.mark.parametrize(("method", "path", "status", "place"), [
    ("POST", "/v1/files", 404, ("error", "message")), ("GET", "/v1/chat/completions", 405, ("error", "message")),
    ("GET", "/v1/messages/batches", 404, ("error", "message")), ("GET", "/api/nosuch", 404, ("error",)),
], ids=str)  # fmt: skip
def test_a_route_that_is_not_here_says_so(
    demo_server: str, method: str, path: str, status: int, place: tuple[str, ...]
) -> None:
    found = httpx.request(method, demo_server + path)
    assert found.status_code == status
    said = found.json()
    for name in place:
        said = said[name]
    assert said.startswith(f"{method} {path}: ")
    assert said.endswith("GET /openapi.json lists the routes of this server")
