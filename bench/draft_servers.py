"""Drafts over HTTP: tokens/s of this server and of llama.cpp's, with drafts and without, in turn.

Run it behind `chrt -r 1`, and nothing else beside it: llama-server's threads wait for each other by spinning. With as
many threads as CPUs, and other programs that compute, it made 11 tokens/s, and did not end one kind in a minute.
"""

from __future__ import annotations

import json
import statistics
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.draft_texts import texts
from bench.servers import NAMES, Setting, missing, serving

__all__ = ["compare_servers"]

N_ANSWER = 128
WAYS: dict[str, dict[str, tuple[str, ...]]] = {
    "ollama_engine": {
        "off": ("--draft", "off"), "lookup": ("--draft", "lookup"), "model": ("--draft-model", "{small}"),
    },
    "llama-server": {"off": ()} | {
        kind: ("--spec-type", kind) for kind in ("ngram-simple", "ngram-map-k", "ngram-mod", "ngram-cache")
    } | {"model": ("--model-draft", "{small}")},
}  # fmt: skip
"""Options of a server's command. A draft model is `small`."""

Body = dict[str, Any]


def compare_servers(
    model: Path, clients: int, rounds: int, kinds: Sequence[str], ways: Sequence[str], small: Path | None = None
) -> None:
    """Measure and print a table. `ways` names those beside "off"; none: all, with "model" where there is a `small`."""
    ways = ways or [way for of_server in WAYS.values() for way in of_server if small or way != "model"]
    print(table(list(measured(model, clients, rounds, kinds, ways, small)), clients, kinds), flush=True)


def bodies(kind: str) -> list[Body]:
    """The requests of one kind."""
    return [
        {"messages": [{"role": "user", "content": text.prompt}], "max_tokens": N_ANSWER, **text.sampling}
        | ({} if text.format is None else {"response_format": {"type": "json_schema", "json_schema": {
            "name": kind, "schema": text.format,
        }}})
        for text in texts(kind)
    ]  # fmt: skip


def ask(port: int, name: str, body: Body) -> Body:
    """One answer, with its usage."""
    data = json.dumps({"model": name, **body}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", data)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=600) as answer:
        found: Body = json.load(answer)
    return found


def speed(port: int, name: str, asked: Sequence[Body], clients: int) -> float:
    """Completion tokens a second of all clients together, behind prompts that their slots hold."""
    seconds, n_tokens = 0.0, 0
    for first in range(0, len(asked), clients):
        turn = asked[first : first + clients]
        for body in turn:
            ask(port, name, {**body, "max_tokens": 1})
        begin = time.perf_counter()
        with ThreadPoolExecutor(clients) as pool:
            done = list(pool.map(lambda body: ask(port, name, body), turn))
        seconds += time.perf_counter() - begin
        n_tokens += sum(int(each["usage"]["completion_tokens"]) for each in done)
    return n_tokens / seconds


def measured(
    model: Path, clients: int, rounds: int, kinds: Sequence[str], ways: Sequence[str], small: Path | None = None
) -> Iterator[tuple[str, str, dict[str, float]]]:
    """(server, way, tokens/s by kind), the median of rounds in which all take part in turn.

    A server is started anew for each round, so that no answer of an earlier one can be looked up.
    """
    servers = [name for name in NAMES if not missing(name)]
    seen: dict[tuple[str, str], dict[str, list[float]]] = {}
    for number in range(rounds):
        for name in servers:
            for way, options in WAYS[name].items():
                if way not in ("off", *ways):
                    continue
                given = [option.format(small=small) for option in options]
                with serving(name, Setting(model, clients, 4096, 2, given)) as port:
                    for kind in kinds:
                        of_kind = seen.setdefault((name, way), {}).setdefault(kind, [])
                        asked = bodies(kind)[: 4 if clients == 1 else None]
                        of_kind.append(speed(port, model.stem, asked, clients))
                        print(f"round {number + 1}: {name} {way} {kind} {of_kind[-1]:.0f} tokens/s", flush=True)
    for (name, way), of_kinds in seen.items():
        yield name, way, {kind: statistics.median(speeds) for kind, speeds in of_kinds.items()}


def table(rows: Sequence[tuple[str, str, dict[str, float]]], clients: int, kinds: Sequence[str]) -> str:
    """Tokens/s, and beside them how many times those without drafts."""
    lines = [f"| {clients} clients | drafts | " + " | ".join(kinds) + " |", "|---|---|" + "---:|" * len(kinds)]
    for name, way, speeds in rows:
        plain = next(of_plain for server, off, of_plain in rows if (server, off) == (name, "off"))
        cells = [f"{speeds[kind]:.0f} ({speeds[kind] / plain[kind]:.2f})" for kind in kinds]
        lines.append(f"| {name} | {way} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
