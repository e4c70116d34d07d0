"""Many chats at once over HTTP: throughput, latencies, fairness, beside llama.cpp's server on the same file and load.

    python bench/serving.py MODEL.gguf --clients 64 --seconds 60
    python bench/serving.py MODEL.gguf --url http://127.0.0.1:11434 --name demo    # a server that runs already

Each client is one connection that streams chats of /v1/chat/completions, one after the other. The servers run one after
the other in rounds, each started anew, and have the same slots and context. Clients read bytes and parse no JSON: they
take CPUs from both servers alike, and should take few.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.peer_tools import our_program, tool

QUESTIONS = ("Tell me a story about a {}.", "What did the {} find?", "Who is the friend of the {}?")
ANIMALS = ("fox", "bear", "cat", "mouse", "owl", "frog", "goat", "crow")
EVENT = b"data: {"
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


# -- servers -----------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def running(command: list[str], port: int, ready: str) -> Iterator[None]:
    """A server, from when it is ready until the block ends."""
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            _wait(child, f"http://127.0.0.1:{port}{ready}")
            yield
        except BaseException:
            output.seek(0)
            print(output.read()[-2000:].decode(errors="replace"), file=sys.stderr)
            raise
        finally:
            child.terminate()
            child.wait(30)


def _wait(child: subprocess.Popen[bytes], url: str) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if child.poll() is not None:
            raise SystemExit(f"serving: the server ended with {child.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("serving: the server is not ready after two minutes")


def ours(model: Path, args: argparse.Namespace, port: int) -> list[str]:
    return [
        our_program(), "serve", str(model), "--port", str(port), "--num-parallel", str(args.slots),
        "--context-length", str(args.num_ctx), "--max-queue", "1024", "--debug-level", "0",
    ]  # fmt: skip


def theirs(model: Path, args: argparse.Namespace, port: int) -> list[str]:
    return [
        tool("llama-server"), "-m", str(model), "--port", str(port), "-np", str(args.slots), "-c",
        str(args.num_ctx * args.slots), "-t", str(args.threads), "--no-webui", "--log-disable", "--jinja",
    ]  # fmt: skip


def measure(kind: str, args: argparse.Namespace) -> dict[str, Any]:
    """One round with one server."""
    port = free_port()
    command = (ours if kind == "ours" else theirs)(args.model, args, port)
    with running(command, port, "/api/version" if kind == "ours" else "/health"):
        asyncio.run(load("127.0.0.1", port, args.model.stem, 1, 0.0, 8))  # the model is loaded
        clients, seconds = asyncio.run(
            load("127.0.0.1", port, args.model.stem, args.clients, args.seconds, args.max_tokens)
        )
    return summary(clients, seconds)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--num-ctx", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=("ours", "llama.cpp"))
    args = parser.parse_args()
    kinds = [args.only] if args.only else ["ours", "llama.cpp"]
    runs: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    for number in range(args.rounds):
        for kind in kinds:
            print(f"round {number + 1} of {args.rounds}: {kind}", file=sys.stderr)
            runs[kind].append(measure(kind, args))
    rows = []
    for name in runs[kinds[0]][0]:
        cells = []
        for kind in kinds:
            values = [run[name] for run in runs[kind]]
            cells.append(values[0] if name == "error" else f"{statistics.median(values):.1f}")
        rows.append([name, *cells])
    for row in [["", *kinds], *rows]:
        print(f"{row[0]:20}" + "".join(f"{cell:>14}" for cell in row[1:]))


if __name__ == "__main__":
    main()
