"""Operations with recurrent states beside ggml's own: the convolution, Mamba-2's scan, the gated delta net.

    python bench/recurrent_ops.py -t 1 2                   # minutes; --only conv: rows with this word in their name
    python bench/recurrent_ops.py --instructions avx2      # ours as on a CPU that has no better

Microseconds for one layer, the fastest of some turns within one process. ggml is the one of this build. Its operations
take states that lie side by side, and write new ones behind their results; ours read a slot for each sequence, and
write one. The convolution has two rows: its sums alone, for which ggml is given the state and the inputs joined; and
all that a layer needs: the state kept, bias and SiLU, or gates, for which llama.cpp has five or six operations.
"""

from __future__ import annotations

import argparse
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from ctypes import c_void_p
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for when this file is run as a program

from bench.ggml_graph import GgmlGraph
from bench.products import by_turns
from ollama_engine.ml import ops
from ollama_engine.ml.device.cpu_facts import cpu_identity
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.ops.recurrent import ssm_state_size

Floats = NDArray[np.float32]
Computed = tuple[Callable[[], None], Callable[[int], Floats], Callable[[], None]]
"""Computes some layers once; the first numbers of the last one's result; called behind a turn."""
BATCHES = ((1, 1), (32, 1), (512, 1), (1, 4), (1, 8), (32, 8))
"""Tokens of each sequence, and sequences."""
GRAPH_BYTES, MOST_LAYERS = 16 << 20, 24
"""A graph has so many layers that their operands take about this: a model's come from beyond the L2 cache, too."""
TURN_SECONDS = 0.01
"""How long a turn repeats its graph, at least."""


@dataclass(frozen=True)
class Batch:
    """`tokens` of each of `sequences`, all of one length, as ggml's operations need it."""

    tokens: int
    sequences: int

    @property
    def rows(self) -> int:
        return self.tokens * self.sequences

    def noise(self, *dims: int, seed: int = 0) -> Floats:
        return np.random.default_rng([seed, *dims]).standard_normal(dims).astype(np.float32)


class Layer(ABC):
    """An operation of one layer: `operands` of a batch, and its node in a graph of ours and in one of ggml's."""

    name: str
    state_size: int
    """Numbers of a sequence's state, of ours."""

    @abstractmethod
    def operands(self, batch: Batch) -> list[Floats]: ...

    @abstractmethod
    def ours(self, given: Sequence[Tensor], *segments: Tensor, instructions: str | None) -> Tensor:
        """`segments`: rows, bounds, slots and states, as these operations take them."""

    @abstractmethod
    def ggml(self, graph: GgmlGraph, given: Sequence[Floats], batch: Batch) -> list[c_void_p]:
        """What is computed; the first is the result."""


class Sums(Layer):
    """The sums of a convolution alone."""

    form = "sums"

    def __init__(self, model: str, channels: int, taps: int) -> None:
        self.name, self.channels, self.taps = f"conv {model}, {self.form}", channels, taps
        self.state_size = channels * (taps - 1)

    def operands(self, batch: Batch) -> list[Floats]:
        return [batch.noise(batch.rows, self.channels), batch.noise(self.channels, self.taps)]

    def ours(self, given: Sequence[Tensor], *segments: Tensor, instructions: str | None) -> Tensor:
        return ops.causal_conv(given[0], given[1], *segments, instructions=instructions)

    def ggml(self, graph: GgmlGraph, given: Sequence[Floats], batch: Batch) -> list[c_void_p]:
        x = given[0].reshape(batch.sequences, batch.tokens, self.channels).transpose(0, 2, 1)
        state = np.zeros((batch.sequences, self.channels, self.taps - 1), np.float32)
        joined = graph.tensor(np.concatenate((state, x), axis=2))
        return [graph.call("ssm_conv", joined, graph.tensor(given[1]))]


class Convolution(Sums):
    """All of a convolution: bias and SiLU, or gates before and behind it, and the state kept."""

    form = "layer"

    def __init__(self, model: str, channels: int, taps: int, *, gated: bool = False) -> None:
        super().__init__(model, channels, taps)
        self.gated = gated

    def operands(self, batch: Batch) -> list[Floats]:
        width = self.channels * (3 if self.gated else 1)
        return [batch.noise(batch.rows, width), batch.noise(self.channels, self.taps), batch.noise(self.channels)]

    def ours(self, given: Sequence[Tensor], *segments: Tensor, instructions: str | None) -> Tensor:
        x, weight, bias = given
        if self.gated:
            return ops.causal_conv(x, weight, *segments, gated=True, instructions=instructions)
        return ops.causal_conv(x, weight, *segments, bias=bias, silu=True, instructions=instructions)

    def ggml(self, graph: GgmlGraph, given: Sequence[Floats], batch: Batch) -> list[c_void_p]:
        tokens, sequences, n, kept = batch.tokens, batch.sequences, self.channels, self.taps - 1
        rows = graph.tensor(given[0].reshape(sequences, tokens, -1))
        stride = given[0].shape[1] * 4
        parts = [graph.call("view_3d", rows, n, tokens, sequences, stride, tokens * stride, i * n * 4)
                 for i in range(3 if self.gated else 1)]  # fmt: skip
        x = graph.call("mul", parts[0], parts[2]) if self.gated else parts[0]
        state = graph.tensor(np.zeros((sequences, n, kept), np.float32))
        joined = graph.call("concat", state, graph.call("transpose", x), 0)
        wide = (tokens + kept) * 4
        latest = graph.call("view_3d", joined, kept, n, sequences, wide, n * wide, tokens * 4)
        y = graph.call("ssm_conv", joined, graph.tensor(given[1]))
        if self.gated:
            y = graph.call("mul", y, parts[1])
        else:
            y = graph.call("silu_inplace", graph.call("add_inplace", y, graph.tensor(given[2])))
        return [y, graph.call("cpy", latest, state)]


class Scan(Layer):
    """Mamba-2's: ggml's takes the step sizes before softplus, ours behind it."""

    def __init__(self, model: str, heads: int, d_state: int, dim: int) -> None:
        self.name, self.sizes = f"scan {model}", (heads, d_state, dim)
        self.state_size = ssm_state_size(dim, d_state, heads)

    def operands(self, batch: Batch) -> list[Floats]:
        heads, d_state, dim = self.sizes
        n = batch.rows
        dt = np.random.default_rng(0).uniform(0.01, 0.1, (n, heads)).astype(np.float32)
        return [batch.noise(n, heads, dim), dt, -np.abs(batch.noise(heads)), batch.noise(n, 1, d_state, seed=1),
                batch.noise(n, 1, d_state, seed=2)]  # fmt: skip

    def ours(self, given: Sequence[Tensor], *segments: Tensor, instructions: str | None) -> Tensor:
        return ops.ssm_scan(*given, *segments, instructions=instructions)

    def ggml(self, graph: GgmlGraph, given: Sequence[Floats], batch: Batch) -> list[c_void_p]:
        heads, d_state, dim = self.sizes
        x, dt, a, b, c = given
        each = (batch.sequences, batch.tokens)
        state = graph.tensor(np.zeros((batch.sequences, heads, dim, d_state), np.float32))
        rows = [x.reshape(*each, heads, dim), np.log(np.expm1(dt)).reshape(*each, heads), a.reshape(heads, 1),
                b.reshape(*each, 1, d_state), c.reshape(*each, 1, d_state),
                np.arange(batch.sequences, dtype=np.int32)]  # fmt: skip
        return [graph.call("ssm_scan", state, *map(graph.tensor, rows), 1)]


class DeltaNet(Layer):
    """ggml's divides results by the square root of the size of a key; ours is given queries that are divided."""

    def __init__(self, model: str, heads: int, size: int) -> None:
        self.name, self.heads, self.size = f"delta {model}", heads, size
        self.state_size = heads * size * size

    def operands(self, batch: Batch) -> list[Floats]:
        n, heads, size = batch.rows, self.heads, self.size
        q, k, v = (batch.noise(n, heads, size, seed=seed) for seed in range(3))
        k /= np.linalg.norm(k, axis=2, keepdims=True)
        return [q / size**0.5, k, v, -np.abs(batch.noise(n, heads)), np.full((n, heads), 0.5, np.float32)]

    def ours(self, given: Sequence[Tensor], *segments: Tensor, instructions: str | None) -> Tensor:
        return ops.gated_delta_net(*given, *segments, instructions=instructions)

    def ggml(self, graph: GgmlGraph, given: Sequence[Floats], batch: Batch) -> list[c_void_p]:
        q, k, v, g, beta = given
        each, heads, size = (batch.sequences, batch.tokens), self.heads, self.size
        rows = [part.reshape(*each, heads, size) for part in (q * np.float32(size**0.5), k, v)]
        rows += [part.reshape(*each, heads, 1) for part in (g, beta)]
        state = np.zeros((batch.sequences, heads, size, size), np.float32)
        return [graph.call("gated_delta_net", *map(graph.tensor, [*rows, state]), 1)]


LAYERS: tuple[Layer, ...] = (
    Sums("qwen35", 6144, 4), Convolution("qwen35", 6144, 4),
    Sums("mamba2", 3328, 4), Convolution("mamba2", 3328, 4),
    Sums("lfm2", 1024, 3), Convolution("lfm2", 1024, 3, gated=True),
    Scan("mamba2", 48, 128, 64), Scan("granite-hybrid", 48, 128, 32), Scan("nemotron-h", 128, 128, 80),
    DeltaNet("qwen35", 16, 128),
)  # fmt: skip


def n_layers(layer: Layer, batch: Batch) -> int:
    nbytes = 4 * (sum(part.size for part in layer.operands(batch)) + batch.sequences * layer.state_size)
    return max(1, min(MOST_LAYERS, GRAPH_BYTES // nbytes))


def _node(layer: Layer, ctx: Context, given: Sequence[Floats], segments: Sequence[Tensor], isa: str | None) -> Tensor:
    return layer.ours([ctx.from_floats(part) for part in given], *segments, instructions=isa)


@contextmanager
def ours(layer: Layer, batch: Batch, backend: Backend, count: int, isa: str | None = None) -> Iterator[Computed]:
    rows, each = np.arange(batch.rows, dtype=np.int32), np.arange(batch.sequences, dtype=np.int32)
    bounds = np.stack((each * batch.tokens, (each + 1) * batch.tokens), axis=1)
    table = (rows, np.ascontiguousarray(bounds), np.stack((each, each), axis=1))
    with Storage(backend, count) as storage, Context(backend, max_nodes=1024) as ctx:
        states = [storage.add(f"s{i}", "f32", (layer.state_size, batch.sequences)) for i in range(count)]
        storage.allocate(0)
        for one in states:
            one.set(np.zeros((batch.sequences, layer.state_size), np.float32))
        segments = [ctx.from_ints(array) for array in table]
        given = layer.operands(batch)
        out = [_node(layer, ctx, given, [*segments, one], isa) for one in states]
        ctx.forward(*out)
        ctx.alloc()
        yield ctx.compute, lambda n: out[-1].numpy().reshape(-1)[:n], lambda: None


@contextmanager
def ggmls(layer: Layer, batch: Batch, threads: int, count: int) -> Iterator[Computed]:
    with closing(GgmlGraph(threads)) as graph:
        given = layer.operands(batch)
        results = []
        for _ in range(count):
            results = layer.ggml(graph, given, batch)
            graph.add(results)
        graph.alloc()
        yield graph.compute, lambda n: graph.floats(results[0], n), graph.pause


def a_turn(side: Computed, count: int) -> Callable[[], float]:
    """Seconds for one layer."""
    compute, _, rest = side

    def turn() -> float:
        compute()
        runs, began = 0, time.perf_counter()
        while time.perf_counter() - began < TURN_SECONDS or runs < 2:
            compute()
            runs += 1
        seconds = (time.perf_counter() - began) / runs / count
        rest()  # ggml's threads spin for the next graph, and would take a CPU from the other side
        return seconds

    return turn


def measure(layer: Layer, batch: Batch, threads: int, isa: str | None) -> dict[str, float]:
    """Seconds of ours and of ggml's, by turns."""
    count = n_layers(layer, batch)
    with (
        Backend(BackendParams(threads=threads, gpu_layers=0)) as backend,
        ours(layer, batch, backend, count, isa) as mine,
        ggmls(layer, batch, threads, count) as theirs,
    ):
        return by_turns({"ours": a_turn(mine, count), "ggml": a_turn(theirs, count)})


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Recurrent operations beside ggml's own.")
    parser.add_argument("-t", dest="threads", type=int, nargs="+", default=[1])
    parser.add_argument("--only", default="", metavar="WORD")
    parser.add_argument("--instructions")
    chosen = parser.parse_args(arguments)
    titles = [f"{tokens} x {sequences}" for tokens, sequences in BATCHES]
    print(f"{cpu_identity()}: us of ours / of ggml's = times as fast; tokens x sequences\n")
    print(f"| | threads | {' | '.join(titles)} |\n|---|---:|{'---:|' * len(titles)}")
    for layer in LAYERS:
        for threads in chosen.threads if chosen.only in layer.name else ():
            cells = []
            for sizes in BATCHES:
                found = measure(layer, Batch(*sizes), threads, chosen.instructions)
                mine, theirs = found["ours"], found["ggml"]
                cells.append(f"{mine * 1e6:,.1f} / {theirs * 1e6:,.1f} = **{theirs / mine:.2f}**")
            print(f"| {layer.name} | {threads} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
