"""ollama-engine beside other engines: llama.cpp's own tools, built from the same pinned sources, and packages of PyPI.

    python bench/peers.py install --native                          # .venv-peers; ik_llama.cpp takes half an hour
    python bench/peers.py engines A.gguf B.gguf -p 512 -n 32 -t 2   # every engine that is here, in turn
    python bench/peers.py decode A.gguf B.gguf -t 2 -r 15           # one caller's decoding, in turns of half a second
    python bench/peers.py build                                     # about 10 minutes on 2 cores, once
    python bench/peers.py compare MODEL.gguf -p 512 -n 128 -t 2 -r 3
    python bench/peers.py compare MODEL.gguf -p 128 -n 64 --parallel 1,2,4,8 -t 2 -r 3
    python bench/peers.py compare MODEL.gguf -p 256 -n 32 -d 4096 --cache q8_0 -t 2 -r 1

`engines` shows one page: prompts, decoding, 8 streams, loading and memory, engine by engine (`peer_engines.py`). With
`--keep turns.json` a call goes on where the last one ended; `--seconds 30` ends it early, on a machine in use.
`compare` looks closer at llama.cpp: one caller, with llama-bench, or several at once, with llama-batched-bench; both
sides run the same ggml commit, so what differs is what surrounds it. Sides take turns (A B A B ...), each time in a
fresh process, and medians are compared.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from pathlib import Path
from typing import Any, get_args

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for when this file is run as a program

from bench import peer_decode, peer_engines, peer_packages, peer_single, peer_streams
from bench.peer_tools import BACKENDS, build_tools
from ollama_engine.config import CacheType


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
    building.add_argument("--backend", choices=BACKENDS, help="those for speeds on a GPU, with this backend")
    installing = commands.add_parser("install", help="install engines from PyPI into .venv-peers")
    installing.add_argument("--native", action="store_true", help="compile ik_llama.cpp for this CPU besides")
    everyone = commands.add_parser("engines", help="measure each MODEL with every engine that is here, in turn")
    everyone.add_argument("models", metavar="MODEL", nargs="+")
    everyone.add_argument("--keep", type=Path, metavar="FILE", help="write every turn there, and go on from it")
    everyone.add_argument("--seconds", type=float, default=math.inf, metavar="S", help="begin no turn after these")
    everyone.add_argument("--only", nargs="+", choices=peer_engines.ENGINES, default=list(peer_engines.ENGINES))
    decoding = commands.add_parser("decode", help="decode with every engine in turns of half a second, all loaded")
    decoding.add_argument("models", metavar="MODEL", nargs="+")
    decoding.add_argument("--only", nargs="+", choices=peer_decode.COMMANDS, default=list(peer_decode.COMMANDS))
    decoding.add_argument("-s", type=float, default=0.4, metavar="SECONDS", help="of a turn of the fastest engine")
    decoding.add_argument("-t", type=int, default=os.cpu_count() or 1, metavar="THREADS")
    decoding.add_argument("-r", type=int, default=15, metavar="ROUNDS")
    decoding.add_argument("--json", action="store_true", help="print JSON instead of a table")
    against = commands.add_parser("compare", help="measure MODEL with both engines in turn")
    against.add_argument("model", metavar="MODEL")
    against.add_argument("--parallel", type=widths, metavar="N,N", help="numbers of streams served at once")
    against.add_argument(
        "--cache", choices=get_args(CacheType), default="f16", help="type of keys and values, on both sides"
    )
    for one in (everyone, against):
        one.add_argument(
            "-d", type=int, default=0, metavar="TOKENS", help="of context that is there before (one stream)"
        )
        one.add_argument("-p", type=int, default=512, metavar="TOKENS", help="prompt length")
        one.add_argument("-n", type=int, default=128, metavar="TOKENS", help="tokens to generate")
        one.add_argument("-t", type=int, default=os.cpu_count() or 1, metavar="THREADS")
        one.add_argument("-r", type=int, default=3, metavar="ROUNDS")
        one.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return top


def engines(chosen: argparse.Namespace) -> tuple[dict[str, Any], str]:
    asks = [peer_single.Ask(model, chosen.p, chosen.n, chosen.t, chosen.d) for model in chosen.models]
    turns = peer_engines.compare(asks, chosen.r, chosen.only, chosen.keep, chosen.seconds)
    return turns.to_json(), peer_engines.report(turns)


def decoding(chosen: argparse.Namespace) -> tuple[dict[str, Any], str]:
    ask = peer_decode.Ask(chosen.s, chosen.t, chosen.r)
    result = peer_decode.compare(chosen.models, chosen.only, ask)
    return result, peer_decode.report(result)


def comparison(chosen: argparse.Namespace) -> tuple[dict[str, Any], str]:
    if chosen.parallel:
        if chosen.d:
            raise SystemExit("peers.py: -d is for one stream; leave --parallel or -d out")
        load = peer_streams.Load(chosen.model, chosen.p, chosen.n, chosen.parallel, chosen.t, chosen.cache)
        result = peer_streams.compare(load, chosen.r)
        return result, peer_streams.report(result)
    ask = peer_single.Ask(chosen.model, chosen.p, chosen.n, chosen.t, chosen.d, chosen.cache)
    result = peer_single.compare(ask, chosen.r)
    return result, peer_single.report(result)


def main(arguments: list[str] | None = None) -> None:
    chosen = parser().parse_args(arguments)
    if chosen.command == "build":
        print(build_tools(chosen.backend))
        return
    if chosen.command == "install":
        for name, outcome in peer_packages.install(native=chosen.native).items():
            print(f"{name}: {outcome}")
        return
    shown = {"engines": engines, "decode": decoding, "compare": comparison}
    result, table = shown[chosen.command](chosen)
    print(json.dumps(result, indent=2) if chosen.json else table)


if __name__ == "__main__":
    main()
