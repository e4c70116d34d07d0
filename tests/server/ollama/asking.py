"""Requests of Ollama's API without a client, and what comes back."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx

from tests.support.emulated import TIMES_AS_LONG

__all__ = ["ask", "error_of", "idle", "leave", "lines_of", "post"]

PATIENCE = 50 * TIMES_AS_LONG


def post(address: str, path: str, body: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(f"{address}/api/{path}", content=content, timeout=PATIENCE)


def ask(address: str, path: str, **body: Any) -> Any:
    """The one object that answers a request without a stream."""
    answer = post(address, path, {"model": "demo", "stream": False} | body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


def lines_of(address: str, path: str, **body: Any) -> list[Any]:
    """The objects of a stream."""
    answer = post(address, path, {"model": "demo"} | body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.content.endswith(b"\n")
    return [json.loads(line) for line in answer.content[:-1].split(b"\n")]


def error_of(answer: httpx.Response) -> tuple[int, str]:
    """Status and message of a request that is refused."""
    assert answer.headers["content-type"] == "application/json", answer.text
    body = answer.json()
    assert list(body) == ["error"]
    return answer.status_code, body["error"]


def leave(address: str) -> None:
    """Ask for an answer that is as good as endless, and hang up behind its first line."""
    digits = {"type": "array", "minItems": 10_000, "items": {"enum": [1, 2, 3]}}
    messages = [{"role": "user", "content": "Tell me of a fox."}]
    body = {"model": "demo", "messages": messages, "format": digits, "options": {"num_predict": 900}}
    with httpx.stream("POST", f"{address}/api/chat", json=body, timeout=60) as answer:
        next(answer.iter_lines())


def idle(address: str, seconds: float = 60) -> bool:
    """Whether no request is left in an engine, within a time that is far more than a step takes."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not httpx.get(f"{address}/slots?model=demo").json():
            return True
    return False
