"""llama-benchy, somebody else's program, asks a server; this reads what it saw.

It wants a tokenizer in Hugging Face's format and the URL of a text. The tokenizer is written from the GGUF file, the
text is this package's documentation, served on the loopback device. Its report has the throughputs; the stream of
events that it writes beside has each request's times, of which its report gives means only.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench import peer_packages
from bench.peer_tools import ROOT
from ollama_engine.ml.gguf.gguf_file import GGUFFile

QUESTION = 8
"""Prompt tokens behind a shared context: fewer than the number that makes each prompt another one, which remains."""


@dataclass(frozen=True)
class Ask:
    """The load of one run: each of `clients` sends one chat at the same moment.

    Attributes:
        prompt: tokens of each prompt; no two are alike.
        shared: tokens that all prompts begin with, as their system message; then `prompt` does not count.
    """

    clients: int
    prompt: int
    answer: int
    shared: int = 0


@dataclass
class Seen:
    """One run, as the clients saw it. Times are in seconds, speeds in tokens/s.

    Attributes:
        prompt_tps: all prompts' tokens over the time to the last first token; nan where a context is shared.
        answer_tps: all answers' tokens over the time from the earliest first token to the last token.
        seconds: from the first request to the end of the last answer.
        tokens: of all answers.
        first: from each request to its first token.
        per_token: of each answer, the mean time between two tokens.
        gaps: between two pieces of an answer.
    """

    prompt_tps: float = 0.0
    answer_tps: float = 0.0
    seconds: float = 0.0
    tokens: int = 0
    requests: int = 0
    errors: list[str] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    per_token: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)


# -- the tokenizer and the text ----------------------------------------------------------------------------------------


def write_tokenizer(model: Path, folder: Path) -> None:
    """tokenizer.json of a GGUF file's byte-level BPE vocabulary. Prompts come out as long as asked, within a few."""
    with GGUFFile(model) as file:
        if file.metadata.get("tokenizer.ggml.model") != "gpt2":
            raise SystemExit(f"serving: {model.name} has no byte-level BPE vocabulary; llama-benchy gets no other")
        tokens: Sequence[str] = file.metadata["tokenizer.ggml.tokens"]  # type: ignore[assignment]
        merges: Sequence[str] = file.metadata["tokenizer.ggml.merges"]  # type: ignore[assignment]
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        vocabulary = {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": list(merges)}
        parts = {"model": vocabulary, "pre_tokenizer": byte_level, "decoder": byte_level}
        written = json.dumps({"version": "1.0", "added_tokens": [], **parts})
    (folder / "tokenizer.json").write_text(written, encoding="utf-8")


@contextmanager
def serve_text(text: str) -> Iterator[str]:
    """The URL of a text."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/text"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def book(folder: Path, shared: int) -> str:
    """The documentation; with a shared context, as much of it as leaves llama-benchy one place to take that from."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    if not shared:
        return text
    program = (
        "import sys; from tokenizers import Tokenizer; t = Tokenizer.from_file(sys.argv[1]); n = int(sys.argv[2])\n"
        "text = sys.stdin.read(); ends = [e for _, e in t.encode(text).offsets]\n"
        "at = next(i for i in range(n, len(ends)) if len(t.encode(text[: ends[i - 1]]).ids) == n)\n"
        "sys.stdout.write(text[: ends[at - 1]])"
    )
    command = [str(peer_packages.PYTHON), "-c", program, str(folder / "tokenizer.json"), str(shared + 1)]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


# -- running -----------------------------------------------------------------------------------------------------------


def run(port: int, name: str, folder: Path, ask: Ask, rounds: int) -> list[Seen]:
    """What the clients saw in each of `rounds`, one after the other, of the server at `port`.

    `folder` has the tokenizer. The text that llama-benchy keeps goes there, too. With a shared context the server has
    not seen it before the first round, and has before the others.
    """
    with serve_text(book(folder, ask.shared)) as text:
        program = [
            str(peer_packages.PYTHON),
            "-m",
            "llama_benchy",
            "--base-url",
            f"http://127.0.0.1:{port}/v1",
            "--book-url",
            text,
        ]
        program += ["--model", name, "--tokenizer", str(folder), "--latency-mode", "none", "--skip-coherence"]
        program += ["--concurrency", str(ask.clients), "--tg", str(ask.answer), "--runs", str(rounds), "--no-warmup"]
        program += ["--no-cache", "--extra-body", f"temperature=0,cache_prompt={json.dumps(bool(ask.shared))}"]
        program += ["--emit-progress", str(folder / "events.jsonl"), "--save-result", str(folder / "report.json")]
        program += ["--format", "json"]
        if ask.shared:
            program += ["--depth", str(ask.shared), "--pp", str(QUESTION), "--no-adapt-prompt"]
        else:
            program += ["--pp", str(ask.prompt)]
        home = {**os.environ, "HOME": str(folder)}
        done = subprocess.run(program, env=home, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"serving: llama-benchy ended with {done.returncode}\n{(done.stderr or done.stdout)[-2000:]}")
    lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    seen = read_events(json.loads(line) for line in lines)
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))["benchmarks"][0]
    for i, one in enumerate(seen):
        one.prompt_tps = float("nan") if ask.shared else _value(report["pp_throughput"], i)
        one.answer_tps = _value(report["tg_throughput"], i)
    return seen


def _value(metric: Mapping[str, Any] | None, i: int) -> float:
    """Of run `i`; nan where it has none, as a run has whose requests all failed."""
    values = metric["values"] if metric else []
    return float(values[i]) if i < len(values) else float("nan")


def read_events(events: Iterable[Mapping[str, Any]]) -> list[Seen]:
    """By run, from the events of its progress file (llama-benchy-progress.v1)."""
    runs: dict[int, Seen] = {}
    begun: dict[int, float] = {}
    of: dict[int, Seen] = {}
    pieces: dict[int, list[float]] = {}
    for event in events:
        request = event.get("request_id", -1)
        if event["type"] == "request_start":
            of[request] = runs.setdefault(event["run_index"], Seen())
            begun.setdefault(event["run_index"], event["ts"])
            of[request].requests += 1
            pieces[request] = []
        elif event["type"] == "request_first_token":
            of[request].first.append(event["ttft_s"])
        elif event["type"] == "tokens":
            pieces[request].append(event["ts"])
        elif event["type"] == "request_end":
            _end(of[request], event, pieces[request])
    for index, seen in runs.items():
        seen.seconds -= begun[index]
    return [runs[index] for index in sorted(runs)]


def _end(seen: Seen, event: Mapping[str, Any], pieces: Sequence[float]) -> None:
    seen.seconds = max(seen.seconds, event["ts"])
    tokens = event["total_tokens"]
    if event["error"] or not tokens:
        seen.errors.append(event["error"] or "an answer without a token")
        return
    seen.tokens += tokens
    seen.gaps += [after - before for before, after in pairwise(pieces)]
    if tokens > 1:
        seen.per_token.append((pieces[-1] - pieces[0]) / (tokens - 1))
