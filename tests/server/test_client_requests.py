"""Requests as published client libraries send them, which OpenAI's, Anthropic's, Ollama's or vLLM's servers take.

The libraries themselves are in the tests of their APIs, where they are installed.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

HELLO = [{"role": "user", "content": "One day"}]
VALUE = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
WEATHER = {
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
