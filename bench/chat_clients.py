"""Clients that stream chats of /v1/chat/completions, one after the other, each over a connection of its own.

They read bytes and parse no JSON: they take CPUs from the server, and should take few.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

QUESTIONS = ("Tell me a story about a {}.", "What did the {} find?", "Who is the friend of the {}?")
ANIMALS = ("fox", "bear", "cat", "mouse", "owl", "frog", "goat", "crow")
TEXT = b'"content":"'


@dataclass
class Client:
    """The answers that one connection saw. Times are in seconds.

    Attributes:
        tokens: by the server's own count, of answers that ended.
        first: from each request to its first text.
        gaps: between two pieces of an answer.
        errors: what was no answer.
    """

    tokens: int = 0
    answers: int = 0
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


async def chat(client: Client, host: str, port: int, body: bytes) -> None:
    """One streamed chat over a connection of its own."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        began = last = time.perf_counter()
        status = await reader.readline()
        if b" 200 " not in status:
            client.errors.append((status + await reader.read(500)).decode(errors="replace"))
            return
        started, whole = False, b""
        while piece := await reader.read(1 << 16):
            now = time.perf_counter()
            if TEXT in piece:
                (client.gaps if started else client.first).append(now - last if started else now - began)
                started, last = True, now
            whole = (whole + piece)[-2000:]
        counted = _usage(whole)
        if counted is None:
            client.errors.append(f"the answer ended early: {whole[-200:]!r}")
        else:
            client.tokens += counted
            client.answers += 1
    finally:
        writer.close()


def _usage(tail: bytes) -> int | None:
    """`completion_tokens` of the last event that has it."""
    _, found, behind = tail.rpartition(b'"completion_tokens":')
    digits = behind.lstrip()[:9]
    return int(bytes(c for c in digits.partition(b",")[0].partition(b"}")[0] if c in b"0123456789")) if found else None


async def load(host: str, port: int, name: str, n: int, seconds: float, max_tokens: int) -> tuple[list[Client], float]:
    """`n` clients that chat for `seconds`; chats that run then are finished."""
    clients = [Client() for _ in range(n)]
    began = time.perf_counter()

    async def work(number: int, client: Client) -> None:
        turn = 0
        while time.perf_counter() - began < seconds and len(client.errors) < 3:
            text = QUESTIONS[turn % len(QUESTIONS)].format(ANIMALS[(number + turn) % len(ANIMALS)])
            body = {"model": name, "messages": [{"role": "user", "content": text}], "stream": True,
                      "stream_options": {"include_usage": True}, "max_tokens": max_tokens, "seed": number * 1000 + turn,
                      "temperature": 0.8}  # fmt: skip
            try:
                await chat(client, host, port, json.dumps(body).encode())
            except OSError as error:
                client.errors.append(str(error))
            turn += 1

    await asyncio.gather(*(work(number, client) for number, client in enumerate(clients)))
    return clients, time.perf_counter() - began


def summary(clients: list[Client], seconds: float) -> dict[str, Any]:
    tokens = [client.tokens for client in clients]
    first = sorted(seen for client in clients for seen in client.first)
    gaps = sorted(gap for client in clients for gap in client.gaps)
    errors = [error for client in clients for error in client.errors]
    return {
        "tokens/s": sum(tokens) / seconds,
        "answers": sum(client.answers for client in clients),
        "max/min tokens": max(tokens) / max(1, min(tokens)),
        "first text p50 ms": 1e3 * _quantile(first, 0.5),
        "first text p99 ms": 1e3 * _quantile(first, 0.99),
        "gap p50 ms": 1e3 * _quantile(gaps, 0.5),
        "gap p99 ms": 1e3 * _quantile(gaps, 0.99),
        "errors": len(errors),
        "error": errors[0] if errors else "",
    }


def _quantile(values: list[float], q: float) -> float:
    return values[min(len(values) - 1, int(q * len(values)))] if values else 0.0
