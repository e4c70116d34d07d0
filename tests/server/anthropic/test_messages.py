"""Anthropic's API: its events byte by byte, and the published client, unmodified."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from typing import Any

import pytest

from tests.server.openai.test_chat_raw import post

ASK = {
    "model": "demo",
    "max_tokens": 6,
    "temperature": 0,
    "messages": [{"role": "user", "content": "One day"}],
}
BY_CLIENT = {
    "model": "demo",
    "max_tokens": 6,
    "messages": ASK["messages"],
    "extra_body": {"temperature": 0},  # newer releases of the client have no argument for it
}
TOOL = {
    "name": "weather",
    "description": "The weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def ask(address: str, path: str = "/v1/messages", **change: Any) -> dict[str, Any]:
    response = post(address, ASK | change, path)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def told(address: str, **change: Any) -> list[dict[str, Any]]:
    """The events of a stream, which have to have their names."""
    response = post(address, ASK | {"stream": True} | change, "/v1/messages")
    assert response.status_code == 200, response.text
    *blocks, end = response.text.split("\n\n")
    assert end == ""
    found = []
    for block in blocks:
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def test_stream_tells_what_the_whole_says(demo_server: str) -> None:
    whole = ask(demo_server)
    found = told(demo_server)
    kinds = [event["type"] for event in found]
    n = kinds.count("content_block_delta")
    assert kinds == [
        "message_start", "ping", "content_block_start", *["content_block_delta"] * n, "content_block_stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert found[0]["message"]["content"] == []
    text = "".join(event["delta"]["text"] for event in found if event["type"] == "content_block_delta")
    assert whole["content"] == [{"type": "text", "text": text}]
    assert whole["stop_reason"] == found[-2]["delta"]["stop_reason"] == "max_tokens"
    for usage in (whole["usage"], found[-2]["usage"]):
        assert usage["output_tokens"] == 6
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] > 0


def test_stop_sequence_is_named(demo_server: str) -> None:
    plain = ask(demo_server, max_tokens=20)["content"][0]["text"]
    word = plain.split()[3]
    found = ask(demo_server, max_tokens=20, stop_sequences=["\u2603", word])
    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", word)
    assert found["content"][0]["text"] == plain.partition(word)[0]
    assert ask(demo_server, stop_sequences=["\u2603"])["stop_sequence"] is None


def test_blocks_are_the_conversation_that_messages_are(demo_server: str) -> None:
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "One day"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "a fox"}]},
        {"role": "user", "content": "Go on"},
    ]
    found = ask(demo_server, messages=turns, system=[{"type": "text", "text": "Be kind"}])
    messages = [
        {"role": "system", "content": "Be kind"},
        {"role": "user", "content": "One day"},
        {"role": "assistant", "content": "a fox"},
        {"role": "user", "content": "Go on"},
    ]
    chat = post(demo_server, {"model": "demo", "messages": messages, "max_tokens": 6, "temperature": 0}).json()
    assert found["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    counted = ask(demo_server, "/v1/messages/count_tokens", messages=turns, system="Be kind")
    assert counted == {"input_tokens": chat["usage"]["prompt_tokens"]}


@pytest.mark.parametrize(
    ("change", "status", "kind", "words"),
    [
        ({"model": "nowhere"}, 404, "not_found_error", "'nowhere' not found"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens"),
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "invalid_request_error", "messages.0.role"),
        ({"temperature": -1}, 400, "invalid_request_error", "temperature"),
        ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "tool_choice"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, 400, "invalid_request_error", "tools.0"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}]},
            400, "invalid_request_error", "not fetched",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "path": "/etc/hostname"}]}]},
            400, "invalid_request_error", "source",
        ),
    ],
)  # fmt: skip
def test_errors_have_their_form(demo_server: str, change: dict[str, Any], status: int, kind: str, words: str) -> None:
    for stream in (False, True):
        response = post(demo_server, ASK | change | {"stream": stream}, "/v1/messages")
        assert response.status_code == status, response.text
        body = response.json()
        assert (body["type"], body["error"]["type"]) == ("error", kind)
        assert words in body["error"]["message"]


def test_image_is_seen_and_counted(demo_server: str) -> None:
    image = pytest.importorskip("PIL.Image").new("RGB", (64, 64), "red")
    file = io.BytesIO()
    image.save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    content = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}},
        {"type": "text", "text": "What is this?"},
    ]
    turns = [{"role": "user", "content": content}]
    counted = ask(demo_server, "/v1/messages/count_tokens", model="demo-vision", messages=turns)["input_tokens"]
    usage = ask(demo_server, model="demo-vision", messages=turns)["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted > 16


def test_published_client(demo_server: str) -> None:
    anthropic = pytest.importorskip("anthropic", reason="extra: clients")
    with anthropic.Anthropic(base_url=demo_server, api_key="any", max_retries=0) as client:
        whole = client.messages.create(**BY_CLIENT)
        with client.messages.stream(**BY_CLIENT) as stream:
            assert "".join(stream.text_stream) == whole.content[0].text
            final = stream.get_final_message()
        assert final.content[0].text == whole.content[0].text
        usages = [(u.input_tokens + u.cache_read_input_tokens, u.output_tokens) for u in (whole.usage, final.usage)]
        assert usages[0] == usages[1]
        counted = client.messages.count_tokens(model="demo", messages=ASK["messages"])
        assert counted.input_tokens == usages[0][0]
        assert client.models.retrieve("demo").display_name == "demo:latest"
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(**BY_CLIENT | {"model": "nowhere"})


def test_published_client_with_asyncio(demo_server: str) -> None:
    anthropic = pytest.importorskip("anthropic", reason="extra: clients")

    async def answers() -> list[str]:
        async with anthropic.AsyncAnthropic(base_url=demo_server, api_key="any", max_retries=0) as client:
            found = await asyncio.gather(*(client.messages.create(**BY_CLIENT) for _ in range(4)))
            async with client.messages.stream(**BY_CLIENT | {"max_tokens": 900}) as stream:
                async for _ in stream.text_stream:
                    break
            return [message.content[0].text for message in found]

    assert len(set(asyncio.run(answers()))) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "choice", [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "weather"}]
)
def test_published_client_calls_tools(chat_server: str, choice: dict[str, Any]) -> None:
    anthropic = pytest.importorskip("anthropic", reason="extra: clients")
    question = {"role": "user", "content": "What is the weather in Paris?"}
    options = {
        "model": "smollm2", "max_tokens": 80, "tools": [TOOL], "tool_choice": choice, "messages": [question],
        "extra_body": {"temperature": 0},
    }  # fmt: skip
    with anthropic.Anthropic(base_url=chat_server, api_key="any", max_retries=0, timeout=120) as client:
        with client.messages.stream(**options) as stream:
            final = stream.get_final_message()
        calls = [block for block in final.content if block.type == "tool_use"]
        assert calls[0].name == "weather"
        assert calls[0].input["city"] in ("Paris", "Rome")
        if "disable_parallel_tool_use" in choice:
            assert final.stop_reason == "tool_use"
            whole = client.messages.create(**options)
            assert [(block.name, block.input) for block in whole.content] == [(calls[0].name, calls[0].input)]
            result = {"type": "tool_result", "tool_use_id": calls[0].id, "content": [{"type": "text", "text": "sunny"}]}
            turn = [question, {"role": "assistant", "content": final.content}, {"role": "user", "content": [result]}]
            after = client.messages.create(model="smollm2", max_tokens=4, messages=turn, tools=[TOOL])
            assert after.usage.output_tokens > 0
            counted = client.messages.count_tokens(model="smollm2", messages=turn, tools=[TOOL])
            assert counted.input_tokens == after.usage.input_tokens + after.usage.cache_read_input_tokens
