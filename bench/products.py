"""Products of random weights by each kernel there is, by turns: from memory, as a model reads weights, or from cache.

A model reads every matrix once in a step, so its weights come from memory. Here, too: many matrices that no cache holds
together are multiplied one after the other, and every computation goes on where the last one stopped, whatever kernel
that used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from ollama_engine.ml import ops
from ollama_engine.ml.device.cpu_facts import last_level_cache
from ollama_engine.ml.device.hostmem import available_bytes
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage, can_repack
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.graph.types import block_of
from ollama_engine.ml.ops.small_batch import plain_read
from ollama_engine.ml.weights.kernel_choice import choose_copy, expert_product, kernels_of, product
from ollama_engine.ml.weights.quantize import TARGETS, quantize_rows

TYPES = tuple(dtype for dtype in TARGETS if dtype != "f32")
DISTINCT = 32
"""Rows of weights that differ: quantizing them all takes longer than measuring."""
LEAST, MOST = 256 << 20, 1 << 30
"""Bytes of weights that are read from memory."""
SAMPLE_BYTES, SAMPLE_OPERATIONS = 8 << 20, 1e9
"""How much one computation reads, and about how much it multiplies at most: 1 to 30 ms, and some meet no neighbour."""
CACHED_SECONDS = 0.004
"""How long a product is repeated whose weights stay in the cache; two times at least."""
LEAST_TURNS, TURNS = 3, 12
TURNS_SECONDS = 1.5
"""After this time, and LEAST_TURNS, a row has no further turns."""

Times = dict[str, float]
"""Seconds by side; the fastest of all turns."""


# -- turns -------------------------------------------------------------------------------------------------------------


def by_turns(sides: Mapping[str, Callable[[], float]]) -> Times:
    """The fastest of each side. Neighbours slow things down and never speed them up, and all sides meet the same."""
    best = dict.fromkeys(sides, float("inf"))
    begin = time.perf_counter()
    for turn in range(TURNS):
        if turn >= LEAST_TURNS and time.perf_counter() - begin > TURNS_SECONDS:
            break
        for name, measure in sides.items():
            best[name] = min(best[name], measure())
    return best


# -- how much no cache holds -------------------------------------------------------------------------------------------


def bytes_from_memory() -> int:
    """Four times the cache, within LEAST and MOST; less where memory is short, since there are up to three copies."""
    return min(max(LEAST, 4 * last_level_cache()), MOST, available_bytes() // 8)


# -- what is multiplied ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Product:
    """Matrices of one type and shape, and the activations that they are multiplied with."""

    dtype: str
    k: int
    m: int
    rows: int
    """Rows of activations; tokens where there are experts."""
    n_expert: int = 0
    used: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.k, self.m, self.n_expert) if self.n_expert else (self.k, self.m)

    @property
    def matrix_bytes(self) -> int:
        """Bytes of one tensor."""
        block, size = block_of(self.dtype)
        return self.k // block * size * self.m * max(1, self.n_expert)

    @property
    def read_bytes(self) -> int:
        """Bytes of one tensor that a product reads."""
        if not self.n_expert:
            return self.matrix_bytes
        missed = (1 - self.used / self.n_expert) ** self.rows
        return round(self.matrix_bytes * (1 - missed))

    @property
    def operations(self) -> int:
        return 2 * self.k * self.m * self.rows * max(1, self.used)

    def per_sample(self, available: int) -> int:
        """How many tensors one computation multiplies."""
        wanted = min(-(-SAMPLE_BYTES // self.read_bytes), int(SAMPLE_OPERATIONS // self.operations))
        return max(1, min(available, wanted))


@dataclass
class Matrices:
    """Weights as they lie in the file and, where ggml has that layout, repacked. Taken in a circle."""

    weights: list[Tensor]
    copies: list[Tensor]
    at: int = field(default=0)
    samples: int = field(default=0)
    """Computed so far; each has numbers of its own, so that tokens ask for other experts every time."""

    def take(self, n: int) -> Iterator[int]:
        for _ in range(n):
            yield self.at
            self.at = (self.at + 1) % len(self.weights)


@contextmanager
def matrices(backend: Backend, of: Product, nbytes: int) -> Iterator[Matrices]:
    """As many tensors as `nbytes` have room for; one where that is less. A weight has its copy where the engine would
    make one."""
    n = max(1, nbytes // of.matrix_bytes)
    with Storage(backend, n) as plain, Storage(backend, n) as repacked:
        weights = [plain.add(f"w{i}", of.dtype, of.shape) for i in range(n)]
        plain.allocate(0)
        copies = []
        if can_repack(backend, of.dtype, of.shape):
            copies = [repacked.add(f"w{i}", of.dtype, of.shape) for i in range(n)]
            repacked.allocate_repacked()
        content = random_weights(of.dtype, of.k, of.m * max(1, of.n_expert))
        for tensor in (*weights, *copies):
            tensor.set_bytes(content)
        if kernels_of(backend).wants_repacked(of.dtype, experts=bool(of.n_expert)):
            for weight, copy in zip(weights, copies, strict=False):
                weight.repacked = copy
        yield Matrices(weights, copies)


def random_weights(dtype: str, k: int, m: int) -> np.ndarray:
    """Weights of a type as bytes, [m, bytes of a row]."""
    block, size = block_of(dtype)
    raw = np.empty((DISTINCT, k // block * size), np.uint8)
    quantize_rows(dtype, np.random.default_rng(0).normal(0, 1, (DISTINCT, k)).astype(np.float32), raw.reshape(-1))
    return np.tile(raw, (m // DISTINCT, 1))


# -- measuring ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kernel:
    """A way to the product: of the weight, the activations and, with experts, the ids."""

    compute: Callable[..., Tensor]
    reads_copy: bool = False


def ggml_kernels(of: Product, found: Matrices) -> dict[str, Kernel]:
    """Those that this build has for the type, one for each copy of the weights."""
    plain = ops.mul_mat_id if of.n_expert else ops.mul_mat
    return {"ggml": Kernel(plain)} | ({"repacked": Kernel(plain, reads_copy=True)} if found.copies else {})


PLAIN_READ = Kernel(lambda weight, x, *ids: plain_read(weight, x))
"""Reads the weights, all of them, in as many threads as compute, and nothing else."""


def chosen_kernel(of: Product) -> Kernel:
    """Whatever the engine takes."""
    return Kernel(expert_product if of.n_expert else product)


def chosen_of_ggml(backend: Backend, of: Product, stored: Matrices) -> str | None:
    """Which of ggml's kernels the engine takes: a product of ggml's is one node of the graph. None: it takes ours."""
    with Context(backend) as ctx:
        x = ctx.input("f32", (of.k, 1, of.rows) if of.n_expert else (of.k, of.rows))
        ids = _ids(ctx, of, np.random.default_rng(0))
        ctx.forward(*ids)
        before = ctx.n_nodes
        ctx.forward(chosen_kernel(of).compute(stored.weights[0], x, *ids))
        if ctx.n_nodes - before > 1:
            return None
    return "ggml" if choose_copy(stored.weights[0], of.rows) is stored.weights[0] else "repacked"


def compare(backend: Backend, of: Product, stored: Matrices, sides: Mapping[str, Kernel]) -> Times:
    """Seconds of one product, by kernel."""
    n = of.per_sample(len(stored.weights))
    samples = {name: lambda kernel=kernel: _sample(backend, of, stored, kernel, n) for name, kernel in sides.items()}
    return {name: seconds / n for name, seconds in by_turns(samples).items()}


def _sample(backend: Backend, of: Product, stored: Matrices, kernel: Kernel, n: int) -> float:
    """Seconds of `n` products. Each has activations of its own: our kernels would round shared ones once."""
    stored.samples += 1
    numbers = np.random.default_rng(stored.samples)
    values = numbers.normal(0, 1, (of.rows, 1, of.k) if of.n_expert else (of.rows, of.k)).astype(np.float32)
    read = stored.copies if kernel.reads_copy else stored.weights
    with Context(backend) as ctx:
        inputs, results = [], []
        for number in stored.take(n):
            x = ctx.input("f32", values.shape[::-1])
            inputs.append(x)
            results.append(kernel.compute(read[number], x, *_ids(ctx, of, numbers)))
        ctx.forward(*results)
        ctx.alloc()
        return _seconds(ctx, inputs, values, repeat=len(stored.weights) == 1)


def _ids(ctx: Context, of: Product, numbers: np.random.Generator) -> tuple[Tensor, ...]:
    if not of.n_expert:
        return ()
    scores = numbers.normal(0, 1, (of.rows, of.n_expert)).astype(np.float32)
    return (ops.cont(ops.top_k(ctx.from_floats(scores), of.used)),)


def _seconds(ctx: Context, inputs: Sequence[Tensor], values: np.ndarray, *, repeat: bool) -> float:
    """The shortest of a few computations where the weights stay in the cache, else of one."""
    best, spent, computed = float("inf"), 0.0, 0
    while computed < (2 if repeat else 1) or (repeat and spent < CACHED_SECONDS):
        for x in inputs:
            x.set(values)
        begin = time.perf_counter()
        ctx.compute()
        took = time.perf_counter() - begin
        best, spent, computed = min(best, took), spent + took, computed + 1
    return best
