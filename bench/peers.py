"""ollama-engine beside llama.cpp's own tools, which are built from the same pinned sources.

    python bench/peers.py build                                     # about 10 minutes on 2 cores, once
    python bench/peers.py compare MODEL.gguf -p 512 -n 128 -t 2 -r 3
    python bench/peers.py compare MODEL.gguf -p 128 -n 64 --parallel 1,2,4,8 -t 2 -r 3
    python bench/peers.py compare MODEL.gguf -p 256 -n 32 -d 4096 --cache q8_0 -t 2 -r 1

The first comparison is of one caller, with llama-bench; the second of several at once, with llama-batched-bench. Both
sides run the same ggml commit, so what differs is what surrounds it. They take turns (A B A B ...), each time in a
fresh process, and medians are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for when this file is run as a program

from bench import peer_single, peer_streams
from bench.peer_tools import BACKEND_OPTIONS, build_tools

CACHES = ("f32", "f16", "bf16", "q8_0", "q4_0")


def widths(text: str) -> tuple[int, ...]:
    try:
        streams = tuple(int(part) for part in text.split(","))
    except ValueError:
        streams = ()
    if not streams or min(streams) < 1 or len(set(streams)) < len(streams):
        raise argparse.ArgumentTypeError(f"expected different numbers of streams such as 1,2,4,8, got {text!r}")
    return streams


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description="llama.cpp's tools from the pinned sources, and comparisons with them.")
    commands = top.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="build the tools and print their folder")
    building.add_argument("--backend", choices=BACKEND_OPTIONS, help="llama-bench alone, with this backend for GPUs")
    against = commands.add_parser("compare", help="measure MODEL with both engines in turn")
    against.add_argument("model", metavar="MODEL")
    against.add_argument("-p", type=int, default=512, metavar="TOKENS", help="prompt length")
    against.add_argument("-n", type=int, default=128, metavar="TOKENS", help="tokens to generate")
    against.add_argument(
        "-d", type=int, default=0, metavar="TOKENS", help="of context that is there before (one stream)"
    )
    against.add_argument("--parallel", type=widths, metavar="N,N", help="numbers of streams served at once")
    against.add_argument("--cache", choices=CACHES, default="f16", help="type of keys and values, on both sides")
    against.add_argument("-t", type=int, default=os.cpu_count() or 1, metavar="THREADS")
    against.add_argument("-r", type=int, default=3, metavar="ROUNDS")
    against.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return top


def main(arguments: list[str] | None = None) -> None:
    chosen = parser().parse_args(arguments)
    if chosen.command == "build":
        print(build_tools(chosen.backend))
        return
    if chosen.parallel:
        if chosen.d:
            raise SystemExit("peers.py: -d is for one stream; leave --parallel or -d out")
        load = peer_streams.Load(chosen.model, chosen.p, chosen.n, chosen.parallel, chosen.t, chosen.cache)
        result = peer_streams.compare(load, chosen.r)
        table = peer_streams.report(result)
    else:
        ask = peer_single.Ask(chosen.model, chosen.p, chosen.n, chosen.t, chosen.d, chosen.cache)
        result = peer_single.compare(ask, chosen.r)
        table = peer_single.report(result)
    print(json.dumps(result, indent=2) if chosen.json else table)


if __name__ == "__main__":
    main()
