"""Published programs that speak Ollama's API, unmodified: langchain-ollama, llm with its plugin, litellm."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.server.pictures import RED_SQUARE
from tests.server.programs import needs, run, run_litellm

pytestmark = pytest.mark.slow


def test_langchain(demo_server: str) -> None:
    needs("langchain_ollama")
    run("-c", f"""
import asyncio
from langchain_ollama import ChatOllama, OllamaEmbeddings

model = ChatOllama(model="demo", base_url={demo_server!r}, num_predict=8, temperature=0)
answer = model.invoke("Tell me a story.")
assert answer.content, answer
assert answer.response_metadata["done_reason"] == "length", answer
assert answer.usage_metadata["output_tokens"] == 8, answer
assert "".join(piece.content for piece in model.stream("Tell me a story.")) == answer.content
assert asyncio.run(model.ainvoke("Tell me a story.")).content == answer.content

picture = [{{"role": "user", "content": [
    {{"type": "text", "text": "What is this?"}}, {{"type": "image_url", "image_url": {RED_SQUARE!r}}},
]}}]
sees = ChatOllama(model="demo-vision", base_url={demo_server!r}, num_predict=8, temperature=0)
seen = sees.invoke(picture)
blind = sees.invoke("What is this?")
assert seen.usage_metadata["input_tokens"] > blind.usage_metadata["input_tokens"], (seen, blind)

embeddings = OllamaEmbeddings(model="demo", base_url={demo_server!r})
found = embeddings.embed_documents(["a", "b"])
assert len(found) == 2
assert max(abs(x - y) for x, y in zip(embeddings.embed_query("a"), found[0])) < 5e-3
""")  # fmt: skip


def test_langchain_has_structured_output_and_tools(chat_server: str) -> None:
    needs("langchain_ollama")
    run("-c", f"""
from langchain_ollama import ChatOllama
from pydantic import BaseModel

class City(BaseModel):
    name: str
    capital: bool

def weather(city: str) -> str:
    \"\"\"The weather of a city.\"\"\"
    return city

model = ChatOllama(model="smollm2", base_url={chat_server!r}, num_predict=100, temperature=0)
structured = model.with_structured_output(City, method="json_schema")
found = structured.invoke("Tell me of Paris. Answer in JSON.")
assert isinstance(found, City), found
answer = model.bind_tools([weather]).invoke("What is the weather in Paris? Use the tool.")
assert all(call["name"] == "weather" for call in answer.tool_calls), answer
assert answer.content or answer.tool_calls, answer
""")  # fmt: skip


def test_litellm(demo_server: str) -> None:
    run_litellm(f"""
import litellm

ask = dict(messages=[{{"role": "user", "content": "Tell me a story."}}], api_base={demo_server!r}, max_tokens=8,
           temperature=0)
for model in ("ollama/demo", "ollama_chat/demo"):
    answer = litellm.completion(model=model, **ask)
    assert answer.usage.completion_tokens == 8, answer
    pieces = [piece.choices[0].delta.content or "" for piece in litellm.completion(model=model, stream=True, **ask)]
    assert "".join(pieces) == answer.choices[0].message.content, (pieces, answer)
found = litellm.embedding(model="ollama/demo", input=["a", "b"], api_base={demo_server!r})
assert len(found.data) == 2, found

picture = [{{"role": "user", "content": [
    {{"type": "text", "text": "What is this?"}}, {{"type": "image_url", "image_url": {{"url": {RED_SQUARE!r}}}}},
]}}]
seen = litellm.completion(model="ollama_chat/demo-vision", **{{**ask, "messages": picture}})
assert seen.usage.prompt_tokens > 16, seen
assert seen.choices[0].message.content, seen
""")  # fmt: skip


def test_llm(chat_server: str, tmp_path: Path) -> None:
    needs("llm_ollama")
    program = "import sys; from llm.cli import cli; cli()"
    environment = {"OLLAMA_HOST": chat_server, "LLM_USER_PATH": str(tmp_path)}
    listed = re.search(r"Ollama: (\S*smollm2\S*)", run("-c", program, "models", **environment))
    assert listed is not None
    options = ("-o", "num_predict", "8", "-o", "temperature", "0", "Tell me a story.")
    streamed = run("-c", program, "prompt", "-m", listed[1], *options, **environment)
    assert streamed == run("-c", program, "prompt", "-m", listed[1], "--no-stream", *options, **environment)
    assert streamed.strip()
