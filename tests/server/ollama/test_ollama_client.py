"""The published client of Ollama, unmodified, drives the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

ollama = pytest.importorskip("ollama", reason="the extra `clients` is not installed")

SHORT = {"num_predict": 6, "seed": 1}
STORY = [{"role": "user", "content": "Tell me a story."}]


@pytest.fixture(scope="module")
def client(demo_server: str) -> Iterator[Any]:
    with ollama.Client(host=demo_server) as made:
        yield made


@pytest.fixture(scope="module")
def chat_client(chat_server: str) -> Iterator[Any]:
    with ollama.Client(host=chat_server) as made:
        yield made


def test_generate(client: Any) -> None:
    answer = client.generate("demo", "One day", options=SHORT)
    assert answer.done
    assert answer.done_reason == "length"
    assert answer.eval_count == 6
    pieces = list(client.generate("demo", "One day", options=SHORT, stream=True))
    assert "".join(piece.response for piece in pieces) == answer.response
    assert pieces[-1].context == answer.context


def test_chat(client: Any) -> None:
    answer = client.chat("demo", STORY, options=SHORT)
    assert answer.message.role == "assistant"
    assert answer.message.content
    pieces = list(client.chat("demo", STORY, options=SHORT, stream=True))
    assert "".join(piece.message.content for piece in pieces) == answer.message.content


def test_log_probabilities(client: Any) -> None:
    answer = client.chat("demo", STORY, options=SHORT, logprobs=True, top_logprobs=2)
    assert "".join(entry.token for entry in answer.logprobs) == answer.message.content
    assert all(len(entry.top_logprobs) == 2 for entry in answer.logprobs)


def test_images(client: Any, tmp_path: Any) -> None:
    """As a path, as bytes, and beside a message: the client reads files itself and sends base64."""
    from PIL import Image  # noqa: PLC0415

    path = tmp_path / "red.png"
    Image.new("RGB", (64, 64), "red").save(path)
    by_path = client.generate("demo-vision", "What is this?", images=[str(path)], options=SHORT)
    by_bytes = client.generate("demo-vision", "What is this?", images=[path.read_bytes()], options=SHORT)
    assert by_path.response == by_bytes.response
    without = client.generate("demo-vision", "What is this?", options=SHORT)
    assert by_path.prompt_eval_count > without.prompt_eval_count + 3
    message = {"role": "user", "content": "What is this?", "images": [path]}
    assert client.chat("demo-vision", [message], options=SHORT).message.content


def test_embeddings(client: Any) -> None:
    found = client.embed("demo", ["a", "b"])
    assert len(found.embeddings) == 2
    assert len(found.embeddings[0]) == len(client.embeddings("demo", "a").embedding)


def test_models(client: Any) -> None:
    client.generate("demo")
    assert "demo:latest" in [model.model for model in client.ps().models]
    assert client.show("demo").modelinfo["general.architecture"] == "llama"


def test_errors(client: Any) -> None:
    with pytest.raises(ollama.ResponseError, match="model 'nope' not found") as refused:
        client.chat("nope", STORY)
    assert refused.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match='option "num_ctx" must be of type integer'):
        list(client.generate("demo", "x", options={"num_ctx": "x"}, stream=True))


def test_side_by_side(demo_server: str) -> None:
    async def talk() -> list[str]:
        client = ollama.AsyncClient(host=demo_server)

        async def story(seed: int) -> str:
            pieces = await client.chat("demo", STORY, options=SHORT | {"seed": seed}, stream=True)
            return "".join([piece.message.content async for piece in pieces])

        found = await asyncio.gather(*(story(seed % 4) for seed in range(16)))
        await client._client.aclose()
        return found

    found = asyncio.run(talk())
    assert found == found[:4] * 4
    assert all(found)


def test_leaving_a_stream(client: Any) -> None:
    for piece in client.chat("demo", STORY, options={"num_predict": 500}, stream=True):
        assert piece.message.content
        break
    assert client.generate("demo", "One day", options=SHORT).done


# -- a model that chats ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_schema(chat_client: Any) -> None:
    pydantic = pytest.importorskip("pydantic")
    city = pydantic.create_model("City", name=(str, ...), capital=(bool, ...))
    question = [{"role": "user", "content": "Tell me of Paris. Answer in JSON."}]
    answer = chat_client.chat("smollm2", question, format=city.model_json_schema(), options={"temperature": 0})
    assert city.model_validate_json(answer.message.content).name
    loose = chat_client.chat("smollm2", question, format="json", options={"temperature": 0, "num_predict": 100})
    assert loose.message.content.lstrip().startswith("{")


def weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: its name.
    """
    return f"It rains in {city}."


@pytest.mark.slow
def test_a_tool_of_python(chat_client: Any) -> None:
    """The client makes a schema of a function; the model is told of it, and what it calls comes as a call."""
    question = [{"role": "user", "content": "What is the weather in Paris? Use the tool."}]
    shown = chat_client._request_raw(
        "POST", "/api/chat", json={"model": "smollm2", "messages": question, "_debug_render_only": True,
                                   "tools": [ollama._utils.convert_function_to_tool(weather).model_dump()]},
    ).json()  # fmt: skip
    assert '"name": "weather"' in shown["_debug_info"]["rendered_template"]
    answer = chat_client.chat("smollm2", question, tools=[weather], options={"temperature": 0, "num_predict": 80})
    for call in answer.message.tool_calls or ():
        assert call.function.name == "weather"
        assert json.dumps(dict(call.function.arguments))
    followed = [*question, answer.message, {"role": "tool", "content": "rain", "tool_name": "weather"}]
    assert chat_client.chat("smollm2", followed, tools=[weather], options={"num_predict": 4}).done
