"""How near does one caller's decoding come to the speed of memory? A token beside a plain read of the weights.

    python bench/roofline.py FILE.gguf -t 1                # ours, and llama.cpp where its tools are built

A token reads every weight once, so it takes at least as long as reading them and computing nothing. Both are measured
in one process, in turn, with as many threads; the fastest turn of each counts, because a neighbour only slows things
down. Of a mixture of experts only the share that a token uses is counted. Recurrent states, which a token reads and
writes, are added at the speed of that read. The last line says whether twice llama.cpp's speed is within reach.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for when this file is run as a program

from bench.peer_single import llama_bench_speeds
from bench.peer_tools import has_tool, run, tool
from ollama_engine.config import EngineConfig
from ollama_engine.evaluate.measure import decode_seconds, random_tokens
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.ops.small_batch import plain_read
from ollama_engine.ml.weights.weight_plan import OUTPUT, TIED, is_expert
from ollama_engine.runner.load.loading import Loaded, load

AT_ONCE = 100
"""Weights that one graph reads."""


@dataclass(frozen=True)
class Roofline:
    """Seconds of the fastest turn of each: `read` reads `nbytes`, a token's weights, `ours` is a token.

    Of recurrent states a token reads and writes `states` bytes, both counted.
    """

    nbytes: float
    read: float
    ours: float
    states: int = 0
    llama_cpp: float | None = None

    @property
    def bound(self) -> float:
        """Seconds to read weights and states."""
        return self.read * (1 + self.states / self.nbytes)


def bytes_of_a_token(loaded: Loaded) -> float:
    """Bytes of weights that a token reads: all but the rows of other tokens, and experts that are not chosen."""
    metadata, infos = Metadata(loaded.gguf.metadata), loaded.weights.plan.infos
    share = metadata.u32("expert_used_count", 1) / metadata.u32("expert_count", 1)
    only_by_row = TIED if OUTPUT in infos else None
    return sum(info.nbytes * (share if is_expert(name) else 1) for name, info in infos.items() if name != only_by_row)


def state_bytes(loaded: Loaded) -> int:
    """Bytes of recurrent states that a token reads, and as many that it writes."""
    return 2 * sum(layer.state_bytes for layer in loaded.model.cache_layers)


def read_seconds(loaded: Loaded) -> float:
    """Seconds to read all weights of the file, by the threads that compute."""
    tensors = [loaded.weights[name] for name in loaded.weights.plan.infos]
    return sum(_read_seconds(loaded, tensors[i : i + AT_ONCE]) for i in range(0, len(tensors), AT_ONCE))


def _read_seconds(loaded: Loaded, tensors: Sequence[Tensor]) -> float:
    with Context(loaded.backend, max_nodes=8 * AT_ONCE) as ctx:
        x = ctx.from_floats([0.0])
        ctx.forward(*(plain_read(tensor, x) for tensor in tensors))
        ctx.alloc()
        began = time.perf_counter()
        ctx.compute()
        return time.perf_counter() - began


def measure(path: str, threads: int, n_tokens: int, rounds: int) -> Roofline:
    config = EngineConfig(num_ctx=max(64, n_tokens), parallel=1, threads=threads, gpu_layers=0)
    with closing(load(path, config)) as loaded:
        tokens = random_tokens(loaded.model.n_vocab, 1, n_tokens)
        decode_seconds(loaded.executor, loaded.cache, tokens)
        read, ours = [], []
        for _ in range(rounds):
            turn = read_seconds(loaded), decode_seconds(loaded.executor, loaded.cache, tokens) / n_tokens
            if loaded.backend.threads_in_use < threads:
                print("the machine is busy: a turn with fewer threads than were asked for is left out", file=sys.stderr)
                continue
            read.append(turn[0])
            ours.append(turn[1])
        if not read:
            raise SystemExit(f"roofline: {threads} threads computed in none of {rounds} turns")
        nbytes, states = bytes_of_a_token(loaded), state_bytes(loaded)
        everything = sum(info.nbytes for info in loaded.weights.plan.infos.values())
    return Roofline(nbytes, min(read) * nbytes / everything, min(ours), states)


def peer_seconds(path: str, threads: int, n_tokens: int, rounds: int) -> float:
    """Seconds for a token, by llama-bench."""
    command = [tool("llama-bench"), "-m", path, "-t", str(threads), "-r", "1", "-o", "json", "-p", "1"]
    speeds = [llama_bench_speeds(json.loads(run([*command, "-n", str(n_tokens)]).stdout)) for _ in range(rounds)]
    return 1 / max(decode for _, decode in speeds)


def report(result: Roofline) -> str:
    rows = [("plain read of a token's weights", result.read), ("of its recurrent states, too", result.bound)]
    rows = [*(rows if result.states else rows[:1]), ("ollama_engine, a token", result.ours)]
    if result.llama_cpp is not None:
        rows += [("llama.cpp, a token", result.llama_cpp), ("half of that", result.llama_cpp / 2)]
    lines = [f"{result.nbytes / 1e6:.0f} MB of weights, {result.states / 1e6:.0f} of states read and written"]
    lines += ["| | ms | of a plain read |", "|---|---:|---:|"]
    lines += [f"| {title} | {seconds * 1e3:.2f} | {result.bound / seconds:.2f} |" for title, seconds in rows]
    if result.llama_cpp is not None:
        ratio, most = result.llama_cpp / result.ours, result.llama_cpp / result.bound
        lines.append(
            f"ollama_engine is {ratio:.2f} times as fast as llama.cpp; reading alone would be {most:.2f} times."
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Decoding beside a plain read of the same weights.")
    parser.add_argument("model", metavar="FILE.gguf")
    parser.add_argument("-t", dest="threads", type=int, default=1)
    parser.add_argument("-n", dest="tokens", type=int, default=32)
    parser.add_argument("-r", dest="rounds", type=int, default=5)
    chosen = parser.parse_args(arguments)
    result = measure(chosen.model, chosen.threads, chosen.tokens, chosen.rounds)
    if has_tool("llama-bench"):
        peer = peer_seconds(chosen.model, chosen.threads, chosen.tokens, 4)
        result = replace(result, llama_cpp=peer)
    print(report(result))


if __name__ == "__main__":
    main()
