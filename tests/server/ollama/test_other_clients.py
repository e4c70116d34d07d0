"""Published programs that speak Ollama's API, unmodified: langchain-ollama, llm with its plugin, litellm.

Each in a process of its own: they leave connections open, warn, and change settings of the process.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PATIENCE = 240
pytestmark = pytest.mark.slow


def run(*arguments: str, **environment: str) -> str:
    """What a Python process prints."""
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False,
        env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def needs(package: str, extra: str = "clients") -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed (extra `{extra}`)")


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
    needs("litellm", "litellm")
    script = f"""
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
"""
    run("-c", script, LITELLM_LOCAL_MODEL_COST_MAP="True")  # it downloads prices otherwise


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
