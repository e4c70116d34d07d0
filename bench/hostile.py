"""Requests that no good client sends: what each costs the server, and those who ask for something else meanwhile.

    python bench/hostile.py                 # all; names of some select these
    python bench/hostile.py prompt bias     # against --url: no server is started, and memory is not read

For each: seconds to its answer, the longest that GET /health took meanwhile (its event loop stood still for so long,
nearly), and by how much the server's memory grew at most. Each case has a server of its own.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import re
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import PIL.Image

PATIENCE = 600
TEXT = "One day a fox ran. "
MIB = 1 << 20


def long_text() -> str:
    """30 MiB: just below what a body may have."""
    return TEXT * (30 * MIB // len(TEXT))


@dataclass(frozen=True)
class Case:
    """A request: its path, and what makes its body."""

    path: str
    body: Callable[[], Any]


def generate(**fields: Any) -> Case:
    return Case("/api/generate", lambda: {"model": "demo", "stream": False, "options": {"num_predict": 1}} | fields)


def chat(content: Callable[[], Any], model: str = "demo", **fields: Any) -> Case:
    def body() -> dict[str, Any]:
        messages = [{"role": "user", "content": content()}]
        return {"model": model, "messages": messages, "max_tokens": 1} | fields

    return Case("/v1/chat/completions", body)


def cut_chat(texts: Callable[[], list[tuple[str, str]]]) -> Case:
    """A conversation of (role, text), which Ollama's API cuts."""

    def body() -> dict[str, Any]:
        messages = [{"role": role, "content": text} for role, text in texts()]
        return {"model": "demo", "stream": False, "options": {"num_predict": 1}, "messages": messages}

    return Case("/api/chat", body)


def picture(draw: Callable[[], bytes]) -> Case:
    def content() -> list[dict[str, Any]]:
        return [{"type": "image_url", "image_url": {"url": f"data:image/x;base64,{b64encode(draw()).decode()}"}}]

    return chat(content, "demo-vision")


def file_of(width: int, height: int, kind: str) -> bytes:
    file = io.BytesIO()
    PIL.Image.fromarray(np.zeros((height, width), np.uint8)).save(file, kind)
    return file.getvalue()


CASES: dict[str, Case] = {
    "prompt": Case("/api/generate", lambda: {"model": "demo", "prompt": TEXT * (250_000_000 // 19), "stream": False}),
    "prompt-30": generate(prompt=long_text()),
    "prompt-30-refused": generate(prompt=long_text(), truncate=False),
    "prompt-30-raw": generate(prompt="x" * (30 * MIB), raw=True, truncate=False),
    "message-30": chat(long_text),
    "message-30-cut": cut_chat(lambda: [("user", long_text())]),
    "emoji-30-cut": cut_chat(lambda: [("user", long_text() + "😀")]),
    "old-30-cut": cut_chat(lambda: [("user", long_text()), ("user", "x")]),
    "olds-30-cut": cut_chat(lambda: [("user", TEXT * 1600)] * 1000),
    "system-30-cut": cut_chat(lambda: [("system", long_text()), ("user", "x")]),
    "answer-30-cut": cut_chat(lambda: [("user", "x"), ("assistant", long_text()), ("user", "x")]),
    "emoji-30": chat(lambda: long_text() + "😀"),
    "messages": chat(lambda: "x", messages=[{"role": "user", "content": "x"}] * 80_000),
    "embed-30": Case("/api/embed", lambda: {"model": "demo", "input": long_text()}),
    "embed-many": Case("/api/embed", lambda: {"model": "demo", "input": ["x"] * 16_384}),
    "tokenize-30": Case("/tokenize", lambda: {"model": "demo", "content": long_text()}),
    "bias": chat(lambda: "x", logit_bias={str(token): 1 for token in range(1_000_000)}),
    "bias-most": chat(lambda: "x", logit_bias={str(token): 1 for token in range(1 << 17)}),
    "values": Case("/v1/embeddings", lambda: {"model": "demo", "input": [[1, 2]] * 80_000}),
    "template": generate(prompt="x", template='{{ $x := "a" }}' + "{{ $x = print $x $x }}" * 60),
    "long-template": generate(prompt="x", template="{{ .Prompt }}" * 10_000),
    "spaces": generate(prompt="x", images=["A " * (15 * MIB)]),
    "deep": Case("/api/chat", lambda: json.loads("[" * 900 + "]" * 900)),
    "wide-png": picture(lambda: file_of(1, 80_000_000, "PNG")),
    "large-png": picture(lambda: file_of(9_400, 9_400, "PNG")),
    "largest-png": picture(lambda: file_of(5_792, 5_792, "PNG")),
    "large-jpeg": picture(lambda: file_of(9_400, 9_400, "JPEG")),
}


@contextmanager
def serving() -> Iterator[tuple[str, int]]:
    """(address, process) of a server of the packaged models."""
    program = str(Path(sys.executable).parent / "ollama-engine")
    command = [program, "serve", "demo", "demo-vision", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            address = next(found.group() for line in process.stdout if (found := re.search(r"http://[\d.]+:\d+", line)))
            threading.Thread(target=process.stdout.read, daemon=True).start()
            yield address, process.pid
        finally:
            process.kill()


def ask(address: str, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=PATIENCE)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (BrokenPipeError, ConnectionResetError):  # refused while its body came
        return 0, b"the connection was closed"
    finally:
        connection.close()


def peak_bytes(process: int) -> int:
    """The most memory that a process has had."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status)[1])  # type: ignore[index]


def measure(name: str, address: str, process: int | None) -> None:
    """Print a line of the table."""
    case = CASES[name]
    body = json.dumps(case.body(), ensure_ascii=False).encode()
    for model in ("demo", "demo-vision"):  # loaded, and its template known
        ask(address, "POST", "/api/chat", json.dumps({"model": model, "messages": [{"role": "user", "content": "x"}],
            "stream": False, "options": {"num_predict": 1}}).encode())  # fmt: skip
    ended, worst = threading.Event(), [0.0]

    def ask_on() -> None:
        while not ended.wait(0.01):
            began = time.perf_counter()
            ask(address, "GET", "/health")
            worst[0] = max(worst[0], time.perf_counter() - began)

    before = 0 if process is None else peak_bytes(process)
    others = threading.Thread(target=ask_on)
    others.start()
    began = time.perf_counter()
    status, answer = ask(address, "POST", case.path, body)
    took = time.perf_counter() - began
    ended.set()
    others.join()
    grown = "" if process is None else f"{(peak_bytes(process) - before) / 1e6:.0f}"
    told = answer[:90].decode(errors="replace")
    print(f"| {name} | {len(body) / 1e6:.1f} | {status} | {took:.2f} | {worst[0] * 1e3:.0f} | {grown} | {told} |",
          flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}")
    parser.add_argument("--url", help="a server that runs already")
    options = parser.parse_args()
    print("| case | MB sent | status | s | longest wait for /health, ms | memory, MB more | answer |")
    print("|---|---:|---:|---:|---:|---:|---|")
    for name in options.cases or CASES:
        if options.url:
            measure(name, options.url, None)
        else:
            with serving() as (address, process):
                measure(name, address, process)


if __name__ == "__main__":
    main()
