"""How long does a caller wait for the first token behind what was computed before? Questions on a text, and a chat.

    python bench/turns.py FILE.gguf -t 2                   # ours and llama-server, where it is built

A text of 2,000 tokens with 8 questions of 40, then a chat of 10 turns: messages of 60 tokens, answers of 16. One slot;
each request is sent when the one before it has been answered. Prompts are token ids, and a bias makes every answer one
token over and over, so that both servers get the same prompts. Milliseconds to the first token, and tokens computed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for when this file is run as a program

from bench.servers import NAMES, Setting, missing, serving

TEXT, QUESTIONS, QUESTION, TURNS, MESSAGE, ANSWER = 2000, 8, 40, 10, 60, 16
ANSWER_ID = 70
"""A token of one letter."""


@dataclass(frozen=True)
class Wait:
    """One request: milliseconds to its first token, and the tokens of its prompt that were computed."""

    milliseconds: float
    computed: int | None


def prompts() -> Iterator[tuple[str, list[int]]]:
    """(kind, prompt) of each request, in order."""
    numbers = np.random.default_rng(0)

    def some(n: int) -> list[int]:
        return [int(token) for token in numbers.integers(100, 500, n)]

    text = some(TEXT)
    for i in range(QUESTIONS):
        yield ("first question", "second question")[i] if i < 2 else "other questions", [*text, *some(QUESTION)]
    history = [*text, *some(MESSAGE)]
    for i in range(TURNS):
        yield "other turns" if i else "first turn", list(history)
        history += [ANSWER_ID] * ANSWER + some(MESSAGE)


def ask(port: int, model: str, prompt: list[int]) -> Wait:
    body: dict[str, Any] = {
        "model": model, "prompt": prompt, "max_tokens": ANSWER, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True}, "logit_bias": {str(ANSWER_ID): 100},
    }  # fmt: skip
    url, head = f"http://127.0.0.1:{port}/v1/completions", {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), head)
    began, first, usage = time.perf_counter(), 0.0, {}
    with urllib.request.urlopen(request, timeout=120) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            if not first and any(choice.get("text") for choice in event["choices"]):
                first = time.perf_counter() - began
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    return Wait(first * 1e3, None if cached is None else usage["prompt_tokens"] - cached)


def measure(name: str, setting: Setting) -> dict[str, list[Wait]]:
    """The waits of each kind of request."""
    waits: dict[str, list[Wait]] = {}
    with serving(name, setting) as port:
        for kind, prompt in prompts():
            waits.setdefault(kind, []).append(ask(port, setting.model.stem, prompt))
    return waits


def report(found: dict[str, dict[str, list[Wait]]]) -> str:
    lines = ["| | " + " | ".join(f"{name}, ms | tokens" for name in found) + " |", "|---|" + "---:|" * 2 * len(found)]
    for kind in next(iter(found.values())):
        cells = []
        for waits in found.values():
            computed = [wait.computed for wait in waits[kind] if wait.computed is not None]
            cells.append(f"{statistics.median(wait.milliseconds for wait in waits[kind]):,.0f}")
            cells.append(f"{min(computed):,} to {max(computed):,}" if len(set(computed)) > 1 else f"{computed[0]:,}"
                         if computed else "-")  # fmt: skip
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Time to the first token behind a shared text, and in a chat.")
    parser.add_argument("model", metavar="FILE.gguf", type=Path)
    parser.add_argument("-t", dest="threads", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    chosen = parser.parse_args(arguments)
    found = {}
    for name in chosen.only:
        if reason := missing(name):
            print(f"{name}: {reason}", file=sys.stderr)
            continue
        found[name] = measure(name, Setting(chosen.model, 1, 4096, chosen.threads))
    print(report(found))


if __name__ == "__main__":
    main()
