"""The published client of Ollama, unmodified, drives the server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

ollama = pytest.importorskip("ollama", reason="the extra `clients` is not installed")

SHORT = {"num_predict": 6, "seed": 1}


@pytest.fixture
def client(demo_server: str) -> Any:
    with ollama.Client(host=demo_server) as made:
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
    messages = [{"role": "user", "content": "Tell me a story."}]
    answer = client.chat("demo", messages, options=SHORT)
    assert answer.message.role == "assistant"
    assert answer.message.content
    pieces = list(client.chat("demo", messages, options=SHORT, stream=True))
    assert "".join(piece.message.content for piece in pieces) == answer.message.content


def test_chat_async(demo_server: str) -> None:
    async def talk() -> str:
        client = ollama.AsyncClient(host=demo_server)
        pieces = [
            piece.message.content
            async for piece in await client.chat(
                "demo", [{"role": "user", "content": "Tell me a story."}], options=SHORT, stream=True
            )
        ]
        await client._client.aclose()
        return "".join(pieces)

    assert asyncio.run(talk())
