"""Speculative decoding by lookup, beside answers without it: tokens/s of this server and of llama.cpp's, in turn.

    python bench/drafts.py [MODEL] [--clients 1 4] [--rounds 3]

MODEL is SmolLM2 135M by default. Answers of four kinds: code that is written again with a change, JSON with the same
keys, a summary with quotations, and text drawn at a high temperature, which repeats nothing. Each kind has several
prompts, which the server has cached when the time is taken.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.real_model import real_model
from bench.servers import NAMES, Setting, missing, serving

ROOT = Path(__file__).resolve().parents[1]
N_ANSWER = 128
WAYS = {
    "ollama_engine": {"off": ("--draft", "off"), "lookup": ("--draft", "lookup")},
    "llama-server": {"off": (), "ngram-simple": ("--spec-type", "ngram-simple"),
                     "ngram-cache": ("--spec-type", "ngram-cache")},
}  # fmt: skip

Body = dict[str, Any]


def code() -> list[str]:
    """Functions of this package, to be written again."""
    names = ("new_file", "file_lock", "closing", "lazy")
    texts = [(ROOT / f"ollama_engine/{name}.py").read_text()[:1200] for name in names]
    return [
        f"Write this Python code again with the function names in upper case:\n```python\n{text}\n```" for text in texts
    ]


def records() -> list[str]:
    """Lines to be made JSON of."""
    towns = ("Oslo", "Lima", "Bern", "Cairo", "Quito", "Hanoi", "Turin", "Perth")
    lines = [f"{town} has {7 * i + 3} museums, {i + 2} airports and {90 + i} parks." for i, town in enumerate(towns)]
    asked = "Make a JSON list of this, with the keys town, museums, airports and parks:\n"
    return [asked + "\n".join(lines[i:] + lines[:i]) for i in range(0, 8, 2)]


def quotations() -> list[str]:
    """Pages of the docs, to be summed up with quotations."""
    pages = [(ROOT / f"docs/{name}.md").read_text()[:1500] for name in ("sessions", "embeddings", "images", "ray")]
    return [f"Sum up this text. Quote whole sentences of it:\n{page}" for page in pages]


def bodies(kind: str) -> list[Body]:
    """The requests of one kind."""
    made: list[Body] = []
    prompts = {"code": code, "JSON": records, "quotations": quotations, "random": code}[kind]()
    for seed, prompt in enumerate(prompts):
        body: Body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": N_ANSWER, "temperature": 0}
        made.append(body | ({"temperature": 2.0, "top_p": 1.0, "seed": seed} if kind == "random" else {}))
    return made


KINDS = ("code", "JSON", "quotations", "random")


def ask(port: int, name: str, body: Body) -> Body:
    """One answer, with its usage."""
    data = json.dumps({"model": name, **body}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", data)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=600) as answer:
        found: Body = json.load(answer)
    return found


def speed(port: int, name: str, asked: Sequence[Body], clients: int) -> float:
    """Completion tokens a second of all clients together; each asks for all in its turn."""
    for body in asked:
        ask(port, name, {**body, "max_tokens": 1})
    begin = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        done = list(pool.map(lambda body: ask(port, name, body), asked))
    seconds = time.perf_counter() - begin
    return sum(int(each["usage"]["completion_tokens"]) for each in done) / seconds


def measured(model: Path, clients: int, rounds: int) -> Iterator[tuple[str, str, dict[str, float]]]:
    """(server, way, tokens/s by kind), the median of rounds in which all take part in turn.

    A server is started anew for each round, so that no answer of an earlier one can be looked up.
    """
    servers = [name for name in NAMES if not missing(name)]
    seen: dict[tuple[str, str], dict[str, list[float]]] = {}
    for number in range(rounds):
        for name in servers:
            for way, options in WAYS[name].items():
                print(f"round {number + 1} of {rounds}, {clients} clients: {name} {way}", flush=True)
                with serving(name, Setting(model, clients, 4096, 2, options)) as port:
                    for kind in KINDS:
                        of_kind = seen.setdefault((name, way), {}).setdefault(kind, [])
                        of_kind.append(speed(port, model.stem, bodies(kind), clients))
    for (name, way), kinds in seen.items():
        yield name, way, {kind: statistics.median(speeds) for kind, speeds in kinds.items()}


def table(rows: Sequence[tuple[str, str, dict[str, float]]], clients: int) -> str:
    """Tokens/s, and beside them how many times those without drafts."""
    lines = [f"| {clients} clients | drafts | " + " | ".join(KINDS) + " |", "|---|---|" + "---:|" * len(KINDS)]
    for name, way, kinds in rows:
        plain = next(of_plain for server, off, of_plain in rows if (server, off) == (name, "off"))
        cells = [f"{kinds[kind]:.0f} ({kinds[kind] / plain[kind]:.2f})" for kind in KINDS]
        lines.append(f"| {name} | {way} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print a table for each number of clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, metavar="MODEL")
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    model = args.model or real_model()
    if model is None:
        raise SystemExit("SmolLM2 cannot be downloaded: name a model's file")
    for clients in args.clients:
        print(table(list(measured(model, clients, args.rounds)), clients), flush=True)


if __name__ == "__main__":
    main()
