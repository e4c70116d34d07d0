"""Published programs that speak Ollama's API, unmodified: langchain-ollama, llm-ollama, litellm."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SHORT = {"num_predict": 8, "temperature": 0, "seed": 1}
PATIENCE = 240


@pytest.fixture
def langchain(demo_server: str) -> Any:
    return pytest.importorskip("langchain_ollama", reason="the extra `clients` is not installed")


def test_langchain_chats_and_streams(langchain: Any, demo_server: str) -> None:
    model = langchain.ChatOllama(model="demo", base_url=demo_server, **SHORT)
    answer = model.invoke("Tell me a story.")
    assert answer.content
    assert answer.response_metadata["done_reason"] == "length"
    assert answer.usage_metadata["output_tokens"] == 8
    assert "".join(piece.content for piece in model.stream("Tell me a story.")) == answer.content
    assert asyncio.run(model.ainvoke("Tell me a story.")).content == answer.content


def test_langchain_embeds(langchain: Any, demo_server: str) -> None:
    made = langchain.OllamaEmbeddings(model="demo", base_url=demo_server)
    found = made.embed_documents(["a", "b"])
    assert len(found) == 2
    assert made.embed_query("a") == pytest.approx(found[0], abs=5e-3)


@pytest.mark.slow
def test_langchain_has_structured_output_and_tools(langchain: Any, chat_server: str) -> None:
    pydantic = pytest.importorskip("pydantic")
    city = pydantic.create_model("City", name=(str, ...), capital=(bool, ...))
    model = langchain.ChatOllama(model="smollm2", base_url=chat_server, temperature=0, num_predict=100)
    found = model.with_structured_output(city, method="json_schema").invoke("Tell me of Paris. Answer in JSON.")
    assert isinstance(found, city)

    def weather(city: str) -> str:
        """The weather of a city."""
        return city

    answer = model.bind_tools([weather]).invoke("What is the weather in Paris? Use the tool.")
    assert all(call["name"] == "weather" for call in answer.tool_calls)
    assert answer.content or answer.tool_calls


@pytest.mark.slow
def test_litellm(demo_server: str) -> None:
    """In a process of its own: importing it changes settings of this one, and warns."""
    pytest.importorskip("importlib.util").find_spec("litellm") or pytest.skip("litellm is not installed")
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
assert len(found.data) == 2
"""
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # it downloads prices otherwise
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_llm(demo_server: str, tmp_path: Path) -> None:
    """Its command line, with its plugin for Ollama."""
    pytest.importorskip("importlib.util").find_spec("llm_ollama") or pytest.skip("llm-ollama is not installed")
    environment = {**os.environ, "OLLAMA_HOST": demo_server, "LLM_USER_PATH": str(tmp_path)}

    def llm(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "llm", *arguments], capture_output=True, text=True, timeout=PATIENCE,
            env=environment, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "Ollama: demo" in llm("models")
    streamed = llm("-m", "demo:latest", "-o", "num_predict", "8", "-o", "temperature", "0", "Tell me a story.")
    whole = llm(
        "-m", "demo:latest", "--no-stream", "-o", "num_predict", "8", "-o", "temperature", "0", "Tell me a story."
    )
    assert streamed == whole
    assert streamed.strip()
