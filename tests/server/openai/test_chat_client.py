"""OpenAI's published client, unmodified: models and chats."""

from __future__ import annotations

import asyncio
import json
from typing import Literal

import pytest
from pydantic import BaseModel

from tests.server.openai.test_chat_raw import endless

openai = pytest.importorskip("openai", reason="extra: clients")

ASK = [{"role": "user", "content": "Name a colour."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class Animal(BaseModel):
    """What answers are read as."""

    kind: Literal["cat", "dog"]
    legs: Literal[3, 4]


@pytest.fixture(scope="module")
def client(demo_server: str):  # type: ignore[no-untyped-def]  # openai.OpenAI, which may not be installed
    with openai.OpenAI(base_url=demo_server + "/v1", api_key="any", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture(scope="module")
def chatty(chat_server: str):  # type: ignore[no-untyped-def]
    with openai.OpenAI(base_url=chat_server + "/v1", api_key="any", max_retries=0, timeout=120) as made:
        yield made


def test_models(client) -> None:  # type: ignore[no-untyped-def]
    assert client.models.retrieve("demo").id == "demo:latest"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("nowhere")
    assert caught.value.code == "model_not_found"


def test_answer_and_stream_agree(client) -> None:  # type: ignore[no-untyped-def]
    options = {"model": "demo", "messages": ASK, "temperature": 0, "max_tokens": 12}
    whole = client.chat.completions.create(**options)
    texts, usage = [], None
    for chunk in client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage
        texts += [choice.delta.content or "" for choice in chunk.choices]
    assert "".join(texts) == whole.choices[0].message.content
    assert usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens == 12
    with client.chat.completions.stream(**options) as stream:
        told = [event.delta for event in stream if event.type == "content.delta"]
    assert "".join(told) == whole.choices[0].message.content


@pytest.mark.slow
def test_real_model_answers_with_log_probabilities(chatty) -> None:  # type: ignore[no-untyped-def]
    found = chatty.chat.completions.create(
        model="smollm2", messages=ASK, temperature=0, max_tokens=8, logprobs=True, top_logprobs=3
    ).choices[0]
    assert "".join(entry.token for entry in found.logprobs.content) == found.message.content
    assert all(len(entry.top_logprobs) == 3 for entry in found.logprobs.content)


@pytest.mark.slow
def test_files_of_the_command_line_are_listed(chatty) -> None:  # type: ignore[no-untyped-def]
    assert [model.id for model in chatty.models.list()] == ["smollm2:latest", "demo:latest", "demo-vision:latest"]


@pytest.mark.slow
def test_parse_gives_objects(chatty) -> None:  # type: ignore[no-untyped-def]
    found = chatty.chat.completions.parse(
        model="smollm2", messages=ASK, response_format=Animal, max_tokens=100, temperature=0
    )
    assert isinstance(found.choices[0].message.parsed, Animal)


@pytest.mark.slow
def test_json_object(chatty) -> None:  # type: ignore[no-untyped-def]
    found = chatty.chat.completions.create(
        model="smollm2", messages=ASK, response_format={"type": "json_object"}, max_tokens=30, seed=1, temperature=0
    ).choices[0]
    assert found.message.content.lstrip().startswith("{")
    assert found.finish_reason == "length" or isinstance(json.loads(found.message.content), dict)


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_tools_are_called_and_answered(chatty, choice) -> None:  # type: ignore[no-untyped-def]
    options = {
        "model": "smollm2", "messages": ASK, "tools": [WEATHER], "tool_choice": choice, "parallel_tool_calls": False,
        "max_tokens": 100, "temperature": 0,
    }  # fmt: skip
    whole = chatty.chat.completions.create(**options).choices[0]
    assert whole.finish_reason == "tool_calls"
    (call,) = whole.message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    with chatty.chat.completions.stream(**options) as stream:
        streamed = stream.get_final_completion().choices[0].message.tool_calls[0]
    assert streamed.function.arguments == call.function.arguments
    turn = [*ASK, whole.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    after = chatty.chat.completions.create(model="smollm2", messages=turn, tools=[WEATHER], max_tokens=4, seed=1)
    assert after.choices[0].finish_reason in ("stop", "length")
    assert after.usage.prompt_tokens > 100


@pytest.mark.slow
def test_allowed_tools(chatty) -> None:  # type: ignore[no-untyped-def]
    other = {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}}
    choice = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "time"}}]},
    }
    found = chatty.chat.completions.create(
        model="smollm2", messages=ASK, tools=[WEATHER, other], tool_choice=choice, parallel_tool_calls=False,
        max_tokens=60,
    )  # fmt: skip
    assert [call.function.name for call in found.choices[0].message.tool_calls] == ["time"]


def test_errors_have_the_clients_types(client) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nowhere", messages=ASK)
    assert missing.value.param == "model"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="demo", messages=ASK, temperature=-1)
    assert wrong.value.param == "temperature"


def test_asyncio_and_cancel(demo_server: str) -> None:
    async def ask() -> tuple[str, int]:
        async with openai.AsyncOpenAI(base_url=demo_server + "/v1", api_key="any", max_retries=0) as client:
            stream = await client.chat.completions.create(
                model="demo", messages=ASK, stream=True, max_tokens=900, logit_bias=endless(demo_server)
            )
            taken = [chunk.choices[0].delta.content async for _, chunk in _first(stream, 3)]
            await stream.close()
            answers = await asyncio.gather(
                *(client.chat.completions.create(model="demo", messages=ASK, max_tokens=5) for _ in range(8))
            )
            return "".join(text or "" for text in taken), len(answers)

    text, n = asyncio.run(ask())
    assert text
    assert n == 8


async def _first(stream, n: int):  # type: ignore[no-untyped-def]
    number = 0
    async for chunk in stream:
        yield number, chunk
        number += 1
        if number == n:
            return
