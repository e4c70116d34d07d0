"""The Responses API: its events byte by byte, and OpenAI's published client."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from tests.server.openai.test_chat_raw import post

ASK = {"model": "demo", "input": "One day", "max_output_tokens": 6, "temperature": 0}
TOOL = {
    "type": "function",
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Answer(BaseModel):
    """What answers are read as."""

    yes: bool


def told(address: str, **change: Any) -> list[dict[str, Any]]:
    """The events of a stream, whose names and numbers have to be right."""
    response = post(address, ASK | {"stream": True} | change, "/v1/responses")
    assert response.status_code == 200, response.text
    *blocks, end = response.text.split("\n\n")
    assert end == ""
    found = []
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
        assert found[-1]["sequence_number"] == number
    return found


def test_stream_tells_what_the_whole_says(demo_server: str) -> None:
    whole = post(demo_server, ASK, "/v1/responses").json()
    found = told(demo_server)
    kinds = [event["type"] for event in found]
    deltas = kinds.count("response.output_text.delta")
    assert kinds == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        *["response.output_text.delta"] * deltas,
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete",
    ]  # fmt: skip
    text = "".join(event["delta"] for event in found if event["type"] == "response.output_text.delta")
    last = found[-1]["response"]
    for response in (whole, last):
        assert response["output"][0]["content"][0]["text"] == text
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["usage"]["output_tokens"] == 6
    assert found[0]["response"]["output"] == []
    assert found[2]["item"]["content"] == []
    assert found[2]["item"]["id"] == last["output"][0]["id"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
    ],
)
def test_errors_name_the_field(demo_server: str, change: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        response = post(demo_server, ASK | change | {"stream": stream}, "/v1/responses")
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == param


def test_numbers_that_json_lacks_are_not_repeated(demo_server: str) -> None:
    body = b'{"model":"demo","input":"One day","max_output_tokens":2,"reasoning":{"effort":null,"more":NaN}}'
    response = post(demo_server, body, "/v1/responses")
    assert response.status_code == 200
    assert "NaN" not in response.text
    assert response.json()["reasoning"]["more"] is None


def test_conversation_of_items_is_that_of_messages(demo_server: str) -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "One day"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a fox"}]},
        {"role": "user", "content": "Go on"},
    ]
    messages = [
        {"role": "system", "content": "Be kind"},
        {"role": "user", "content": "One day"},
        {"role": "assistant", "content": "a fox"},
        {"role": "user", "content": "Go on"},
    ]
    found = post(demo_server, ASK | {"input": items, "instructions": "Be kind"}, "/v1/responses").json()
    chat = post(demo_server, {"model": "demo", "messages": messages, "max_tokens": 6, "temperature": 0}).json()
    assert found["output"][0]["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert found["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]


def test_published_client_streams(demo_server: str) -> None:
    openai = pytest.importorskip("openai", reason="extra: clients")
    with openai.OpenAI(base_url=demo_server + "/v1", api_key="any", max_retries=0) as client:
        whole = client.responses.create(**ASK, include=["message.output_text.logprobs"], top_logprobs=2)
        assert "".join(entry.token for entry in whole.output[0].content[0].logprobs) == whole.output_text
        with client.responses.stream(**ASK) as stream:
            deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        assert "".join(deltas) == whole.output_text


@pytest.mark.slow
def test_published_client_parses_and_calls(chat_server: str) -> None:
    openai = pytest.importorskip("openai", reason="extra: clients")
    ask = {"model": "smollm2", "input": "What is the weather in Paris?", "temperature": 0, "max_output_tokens": 80}
    with openai.OpenAI(base_url=chat_server + "/v1", api_key="any", max_retries=0) as client:
        assert isinstance(client.responses.parse(**ask, text_format=Answer).output_parsed, Answer)
        options = ask | {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
        (call,) = client.responses.create(**options).output
        assert json.loads(call.arguments)["city"] in ("Paris", "Rome")
        with client.responses.stream(**options) as stream:
            streamed = stream.get_final_response().output[0]
        assert (streamed.name, streamed.arguments) == ("weather", call.arguments)
        turn = [
            {"role": "user", "content": ask["input"]},
            call,
            {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
        ]
        after = client.responses.create(**ask | {"input": turn, "max_output_tokens": 4, "tools": [TOOL]})
        assert after.usage.output_tokens > 0
