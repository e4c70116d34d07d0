"""Published programs that speak OpenAI's API, unmodified: litellm, and llm with a model of its configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.pictures import RED_SQUARE
from tests.server.programs import needs, run, run_litellm

pytestmark = pytest.mark.slow


def test_litellm(demo_server: str) -> None:
    run_litellm(f"""
import litellm

at = dict(api_base="{demo_server}/v1", api_key="none")
ask = dict(messages=[{{"role": "user", "content": "Tell me a story."}}], max_tokens=8, temperature=0, **at)
answer = litellm.completion(model="openai/demo", **ask)
assert answer.usage.completion_tokens == 8, answer
assert answer.choices[0].finish_reason == "length", answer
pieces = list(litellm.completion(model="openai/demo", stream=True, stream_options={{"include_usage": True}}, **ask))
said = [piece.choices[0].delta.content or "" for piece in pieces if piece.choices]  # not with the usage
assert "".join(said) == answer.choices[0].message.content, pieces
assert [piece.usage.completion_tokens for piece in pieces if getattr(piece, "usage", None)] == [8], pieces

found = litellm.embedding(model="openai/demo", input=["a", "b"], **at)
assert [len(entry["embedding"]) for entry in found.data] == [256, 256], found

picture = [{{"role": "user", "content": [
    {{"type": "text", "text": "What is this?"}}, {{"type": "image_url", "image_url": {{"url": {RED_SQUARE!r}}}}},
]}}]
blind = litellm.completion(model="openai/demo-vision", **{{**ask, "messages": [
    {{"role": "user", "content": "What is this?"}}]}})
seen = litellm.completion(model="openai/demo-vision", **{{**ask, "messages": picture}})
assert seen.usage.prompt_tokens > blind.usage.prompt_tokens, (seen, blind)

try:
    litellm.completion(model="openai/nosuch", **ask)
except litellm.NotFoundError as error:
    assert "nosuch" in str(error), error
else:
    raise AssertionError("a model that is not there answers")
""")


def test_litellm_has_tools_and_schemas(chat_server: str) -> None:
    run_litellm(f"""
import json
import litellm
from pydantic import BaseModel

class City(BaseModel):
    name: str
    capital: bool

weather = {{"type": "function", "function": {{"name": "weather", "description": "The weather of a city.",
    "parameters": {{"type": "object", "properties": {{"city": {{"type": "string"}}}}, "required": ["city"]}}}}}}
ask = dict(model="openai/smollm2", api_base="{chat_server}/v1", api_key="none", max_tokens=100, temperature=0)
said = [{{"role": "user", "content": "What is the weather in Paris?"}}]
for stream in (False, True):
    answer = litellm.completion(messages=said, tools=[weather], tool_choice="required", stream=stream, **ask)
    if stream:
        answer = litellm.stream_chunk_builder(list(answer), messages=said)
    (call,) = answer.choices[0].message.tool_calls
    assert call.function.name == "weather", answer
    assert isinstance(json.loads(call.function.arguments)["city"], str), answer
answer = litellm.completion(messages=said, response_format=City, **ask)
City.model_validate_json(answer.choices[0].message.content)
""")


def test_llm(chat_server: str, tmp_path: Path) -> None:
    needs("llm")
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: here\n  model_name: smollm2\n  api_base: {chat_server}/v1\n  api_key_name: none\n"
    )
    program = "import sys; from llm.cli import cli; cli()"
    environment = {"LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
    ask = ("prompt", "-m", "here", "-o", "max_tokens", "8", "-o", "temperature", "0", "Tell me a story.")
    streamed = run("-c", program, *ask, **environment)
    assert streamed.strip()
    assert streamed == run("-c", program, *ask, "--no-stream", **environment)
