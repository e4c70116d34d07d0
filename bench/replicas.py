"""Replicas on Ray beside the server in one process: throughput and latency, and how much of prompts is cached.

    python bench/replicas.py load MODEL --clients 64 --seconds 60        # chats of many clients at once
    python bench/replicas.py prefixes MODEL --chats 48 --turns 6         # conversations that begin alike
    python bench/replicas.py scaling MODEL --replicas 1 2 --seconds 60   # clients come and go, and replicas with them

Each round starts every server anew, one after the other: `serve`, and `serve --replicas N` for each N of --replicas.
MODEL is a GGUF file, or demo. The clients are those of bench/chat_clients.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import httpx

from bench.chat_clients import load, summary
from bench.peer_tools import our_program
from bench.servers import free_port, running
from tests.ray.running import serving

ROLES = ("a patient teacher", "a ship's cook", "the keeper of a lighthouse", "a clerk", "a gardener", "a watchmaker")
QUESTION = "What do you do on day {}, and why? Think of {} other things that could happen to you meanwhile."


def command(model: str, args: argparse.Namespace, replicas: int, port: int) -> list[str]:
    """`serve` with one engine in its process (0 replicas), or with replicas."""
    slots = args.slots // max(1, replicas)
    found = [our_program(), "serve", model, "--port", str(port), "--num-parallel", str(slots), "--context-length",
             str(args.num_ctx), "--max-queue", "1024"]  # fmt: skip
    return found if not replicas else [*found, "--replicas", str(replicas), "--replica-cpus", "1"]


def counters(port: int) -> dict[str, float]:
    """The server's counters of tokens, all replicas together."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    totals = {}
    for name in ("prompt", "cached", "completion"):
        mark = f"ollama_engine_{name}_tokens_total{{"
        totals[name] = sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(mark))
    return totals


def measure_load(port: int, name: str, args: argparse.Namespace) -> dict[str, Any]:
    asyncio.run(load("127.0.0.1", port, name, 4, 1.0, 8))  # every replica has loaded the model
    return summary(*asyncio.run(load("127.0.0.1", port, name, args.clients, args.seconds, args.max_tokens)))


def measure_prefixes(port: int, name: str, args: argparse.Namespace) -> dict[str, Any]:
    """The share of prompt tokens that were cached, of conversations with one of six system messages."""
    asyncio.run(converse(port, name, args))
    found = counters(port)
    return {
        "cached": found["cached"] / (found["cached"] + found["prompt"]),
        "prompt tokens": found["cached"] + found["prompt"],
    }


def scale(args: argparse.Namespace) -> None:
    """Print when replicas come and go: from the least to the most of --replicas, while clients ask and afterwards."""
    least, most = min(args.replicas), max(args.replicas)
    with serving(
        args.model, "--replicas", f"{least}-{most}", "--replica-cpus", "1", "--num-parallel", str(args.slots // most),
        "--context-length", str(args.num_ctx), "--max-queue", "1024",
    ) as server:  # fmt: skip
        began, ended, counts = time.monotonic(), threading.Event(), [0]

        def watch() -> None:
            while not ended.wait(0.5):
                there = len(server.replicas())
                if there != counts[-1]:
                    counts.append(there)
                    print(f"{time.monotonic() - began:4.0f} s: {there} replicas", flush=True)

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            port = int(server.url.rpartition(":")[2])
            result = load("127.0.0.1", port, Path(args.model).stem, args.clients, args.seconds, args.max_tokens)
            found = summary(*asyncio.run(result))
            print(f"{time.monotonic() - began:4.0f} s: the clients have gone, {found}", flush=True)
            until = time.monotonic() + 900
            while counts[-1] != least and time.monotonic() < until:
                time.sleep(1)
        finally:
            ended.set()
            watching.join()


async def converse(port: int, name: str, args: argparse.Namespace) -> None:
    """Conversations side by side, whose turns come in a random order."""
    draw = random.Random(1)
    room = asyncio.Semaphore(args.clients)

    async def talk(client: httpx.AsyncClient, number: int) -> None:
        system = f"You are {ROLES[number % len(ROLES)]}. " + "Answer in whole sentences, and be kind. " * 4
        messages: list[Any] = [{"role": "system", "content": system}]
        for turn in range(args.turns):
            await asyncio.sleep(draw.random())
            messages.append({"role": "user", "content": QUESTION.format(turn, number)})
            wanted = {"model": name, "messages": messages, "stream": False,
                      "options": {"temperature": 0, "num_predict": 16, "num_ctx": args.num_ctx}}  # fmt: skip
            async with room:
                answer = await client.post(f"http://127.0.0.1:{port}/api/chat", content=json.dumps(wanted))
            answer.raise_for_status()
            messages.append(answer.json()["message"])

    async with httpx.AsyncClient(timeout=300) as client:
        await asyncio.gather(*(talk(client, number) for number in range(args.chats)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("load", "prefixes", "scaling"))
    parser.add_argument("model")
    parser.add_argument("--replicas", type=int, nargs="+", default=[0, 1, 2], help="0: `serve` without Ray")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--slots", type=int, default=64, help="of all replicas together")
    parser.add_argument("--num-ctx", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--chats", type=int, default=48)
    parser.add_argument("--turns", type=int, default=6)
    args = parser.parse_args()
    if args.what == "scaling":
        scale(args)
        return
    name = Path(args.model).stem
    rows: dict[int, list[dict[str, Any]]] = {n: [] for n in args.replicas}
    for number in range(args.rounds):
        for n in args.replicas:
            print(f"round {number + 1} of {args.rounds}: {n or 'no'} replicas", file=sys.stderr)
            port = free_port()
            with running(command(args.model, args, n, port), port, "/api/version"):
                rows[n].append((measure_load if args.what == "load" else measure_prefixes)(port, name, args))
            print(rows[n][-1], file=sys.stderr)
    print(f"{'':20}" + "".join(f"{f'{n} on Ray' if n else 'serve':>14}" for n in args.replicas))
    for name in rows[args.replicas[0]][0]:
        cells = [
            values[0] if name == "error" else f"{statistics.median(values):.3g}"
            for values in ([row[name] for row in rows[n]] for n in args.replicas)
        ]
        print(f"{name:20}" + "".join(f"{cell:>14}" for cell in cells))


if __name__ == "__main__":
    main()
