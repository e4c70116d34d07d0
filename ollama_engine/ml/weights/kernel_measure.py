"""Measures kernels of few rows on weights that are read from memory, as a model reads them while it decodes.

A sample multiplies some weights of one kind, a few MiB in all, with one kernel. All kernels, kinds and numbers of rows
take turns, each with weights further on, so that none finds its weights in a cache. Memory is quicker in one moment
than in the next. So a kernel is compared, in each turn, with the one that the engine begins with, and the median of
that counts. A kernel that is far behind takes no further turns. What is read first pays for pages and for threads that
sleep; it is not timed.

ggml's kernels take part only where a row of their results has the same bits with any few rows beside it: an answer must
not depend on its company.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np

from ollama_engine.ml.device.cpu_facts import last_level_cache
from ollama_engine.ml.gguf.gguf_file import IMAGE_PARTS, TensorInfo
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import ALIGNMENT, Storage, can_repack
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.ops.experts import mul_mat_id_small_batch
from ollama_engine.ml.ops.math import top_k
from ollama_engine.ml.ops.nn import mul_mat, mul_mat_id
from ollama_engine.ml.ops.shape import cont
from ollama_engine.ml.ops.small_batch import (
    SMALL_BATCH_QUANTIZED,
    SMALL_BATCH_VARIANTS,
    mul_mat_small_batch,
    plain_read,
    small_batch_instructions,
    small_batch_variants,
)
from ollama_engine.ml.weights.kernel_choice import BY_TABLE
from ollama_engine.ml.weights.kernel_timings import GGML, REPACKED
from ollama_engine.ml.weights.kernel_variants import FEW_ROWS, FewRows

__all__ = ["PLAIN_READ", "Kind", "Weighed", "kinds_of", "measure", "most_bytes"]

PLAIN_READ = "read"
"""The name under which reading the weights, and nothing else, is measured."""
SAMPLE_BYTES = 8 << 20
"""What a sample reads at least: about 0.2 ms."""
MOST_PARTS = 256
"""Most products of a sample: of small matrices they read less."""
PART_BYTES = 4 << 20
BEHIND = (2.0, 1.3, 1.1)
"""After each turn, kernels so many times as slow as the fastest drop out."""
UNDISTURBED = 3
"""Turns of which one met no other program, as far as that matters: where everything is measured, all take as many."""
TURNS = 12
STEADY_ROWS = (1, 2, 3, 4, 7, 8, 15)
"""Numbers of rows with which a kernel of ggml's must give the same bits."""
TILE = 32
"""Rows of a part are a multiple of this, so that parts begin at multiples of ALIGNMENT."""


class Kind(NamedTuple):
    """Weights that have kernels of their own."""

    dtype: str
    experts: bool


class WeightPart(NamedTuple):
    """Some rows of a matrix, or some experts."""

    file: int
    offset: int
    shape: tuple[int, ...]
    nbytes: int


Weighed = Mapping[Kind, Sequence[TensorInfo]]
"""The weights of a model, by kind."""


def kinds_of(tensors: Collection[TensorInfo]) -> Weighed:
    """The weights that have kernels of ours, and of which no cache holds a large part; those with most bytes first."""
    kinds: dict[Kind, list[TensorInfo]] = {}
    for info in tensors:
        n_dims = len(info.shape)
        if n_dims in (2, 3) and _has_kernels(info.dtype, experts=n_dims == 3) and not info.name.startswith(IMAGE_PARTS):
            kinds.setdefault(Kind(info.dtype, n_dims == 3), []).append(info)
    sizes = {kind: sum(info.nbytes for info in mine) for kind, mine in kinds.items()}
    least = most_bytes()
    return {kind: kinds[kind] for kind in sorted(kinds, key=lambda kind: -sizes[kind]) if sizes[kind] >= least}


def _has_kernels(dtype: str, *, experts: bool) -> bool:
    return dtype in SMALL_BATCH_QUANTIZED if experts else len(small_batch_instructions(dtype)) > 1


def most_bytes() -> int:
    """Bytes of weights of one kind that are enough: more than a cache holds."""
    return max(2 * last_level_cache(), 8 * SAMPLE_BYTES)


def _parts(tensors: Sequence[TensorInfo]) -> list[WeightPart]:
    """As many parts of these as are needed: more would only have to be paged in."""
    parts: list[WeightPart] = []
    total, most = 0, most_bytes()
    for part in chain.from_iterable(map(_parts_of, tensors)):
        if total >= most:
            break
        parts.append(part)
        total += part.nbytes
    return parts


def _parts_of(info: TensorInfo) -> Iterator[WeightPart]:
    *one, n = info.shape
    nbytes = info.nbytes // n
    if len(one) == 1:
        step = max(TILE, min(n, PART_BYTES // nbytes) // TILE * TILE)
    else:  # two at least: ggml takes one for a matrix, and repacks that otherwise
        step = max(2, min(n, SAMPLE_BYTES // nbytes))
    if info.offset % ALIGNMENT == 0 and step * nbytes % ALIGNMENT == 0 and one[0] % 16 == 0:
        for first in range(0, n - step + 1, step):
            yield WeightPart(info.file, info.offset + first * nbytes, (*one, step), step * nbytes)


# -- measuring ---------------------------------------------------------------------------------------------------------


def measure(
    backend: Backend, files: Sequence[mmap.mmap], weighed: Weighed, seconds: float, rows: Sequence[int] = FEW_ROWS, *,
    everything: bool = False,
) -> dict[FewRows, dict[str, float]]:  # fmt: skip
    """Seconds per GB of weights by kernel, for each kind and `rows`; without kinds for which the time is too short.

    A choice by some of the row counts would hold for all of them.
    Where weights have to be read from a disk first, as loading the model has to, it takes that much longer.
    `everything`: measure plain reads, too, and all of ggml's kernels; then the fastest turn of each counts.
    """
    end = time.perf_counter() + seconds
    with ExitStack() as undo:
        mapped = {kind: _mapped(backend, files, kind, _parts(mine), undo) for kind, mine in weighed.items()}
        end = max(end, time.perf_counter() + seconds / 2)
        weights = [_Weights(backend, files, kind, mine, undo, everything) for kind, mine in mapped.items() if mine]
        contests = [_Contest(backend, mine, n) for n in rows for mine in weights]
        for contest in contests[: len(weights)]:
            contest.warm_up(end)
        for turn in range(TURNS):
            for contest in contests:
                if not contest.take_turn(turn, end):
                    partly = {_kind(it.question) for it in contests if not it.turns}
                    return {it.question: it.seconds() for it in contests if _kind(it.question) not in partly}
    return {it.question: it.seconds() for it in contests}


def _kind(question: FewRows) -> Kind:
    return Kind(question.dtype, question.experts)


class _Weights:
    """The parts of a kind as tensors, which are taken in a circle, and the kernels that there are for them."""

    def __init__(
        self, backend: Backend, files: Sequence[mmap.mmap], kind: Kind, mapped: Sequence[tuple[Tensor, WeightPart]],
        undo: ExitStack, everything: bool,
    ) -> None:  # fmt: skip
        self.kind = kind
        self.everything = everything
        self.tensors = [tensor for tensor, _ in mapped]
        self.copies: list[Tensor] = []
        """One sample, repacked. Reading the others meanwhile drives it out of the caches."""
        self._at = 0
        first = [part for _, part in mapped[: len(self.take())]]
        if all(can_repack(backend, kind.dtype, part.shape) for part in first):
            storage = undo.enter_context(Storage(backend, len(first)))
            self.copies = [storage.add(str(i), kind.dtype, part.shape) for i, part in enumerate(first)]
            storage.allocate_repacked()
            storage.fill({str(i): _content(files[part.file], part) for i, part in enumerate(first)})
        self.ggml = [GGML, REPACKED] if self.copies else [GGML]
        """Those of ggml's kernels that take part."""
        if not everything:
            self.ggml = [name for name in self.ggml[-1:] if self._is_steady(backend, name)]

    def take(self) -> list[Tensor]:
        """The next sample."""
        taken: list[Tensor] = []
        most = min(len(self.tensors), MOST_PARTS)
        while sum(tensor.nbytes for tensor in taken) < SAMPLE_BYTES and len(taken) < most:
            taken.append(self.tensors[self._at])
            self._at = (self._at + 1) % len(self.tensors)
        return taken

    def _is_steady(self, backend: Backend, name: str) -> bool:
        weight = (self.copies if name == REPACKED else self.tensors)[0]
        values = np.random.default_rng(0).normal(0, 1, (max(STEADY_ROWS), weight.dim(0))).astype(np.float32)
        results = set()
        for rows in STEADY_ROWS:
            with Context(backend) as ctx:
                x = ctx.from_floats(values[:rows, None] if self.kind.experts else values[:rows])
                y = product(ctx, name, weight, x, rows, experts=self.kind.experts)
                ctx.forward(y)
                ctx.compute()
                results.add(y.numpy().reshape(rows, -1)[0].tobytes())
        return len(results) == 1


def product(ctx: Context, name: str, weight: Tensor, x: Tensor, rows: int, *, experts: bool) -> Tensor:
    """The product by the kernel of this name; each row goes to all experts."""
    if name == PLAIN_READ:
        return plain_read(weight, x)
    if not experts:
        return mul_mat_small_batch(weight, x, None, name) if name in SMALL_BATCH_VARIANTS else mul_mat(weight, x)
    n = weight.dim(2)
    ids = cont(top_k(ctx.from_floats(np.tile(np.arange(n, dtype=np.float32), (rows, 1))), n))
    if name in SMALL_BATCH_VARIANTS:
        return mul_mat_id_small_batch(weight, x, ids, None, name)
    return mul_mat_id(weight, x, ids)


def _mapped(
    backend: Backend, files: Sequence[mmap.mmap], kind: Kind, parts: Sequence[WeightPart], undo: ExitStack
) -> list[tuple[Tensor, WeightPart]]:
    tensors: list[tuple[Tensor, WeightPart]] = []
    for number, file in enumerate(files):
        mine = {str(i): part for i, part in enumerate(parts) if part.file == number}
        if mine:
            storage = undo.enter_context(Storage(backend, len(mine)))
            tensors += [(storage.add(name, kind.dtype, part.shape), part) for name, part in mine.items()]
            storage.map(file, {name: part.offset for name, part in mine.items()})
            for part in mine.values():
                storage.populate(part.offset, part.nbytes)
    return tensors


def _content(file: mmap.mmap, part: WeightPart) -> np.ndarray:
    return np.frombuffer(file, np.uint8, part.nbytes, part.offset)


@dataclass
class _Contest:
    """The kernels of a kind for one number of rows."""

    backend: Backend
    weights: _Weights
    rows: int
    turns: list[dict[str, float]] = field(default_factory=list)
    """Seconds per GB of those that took part in each turn."""

    def __post_init__(self) -> None:
        kind = self.weights.kind
        self.start = BY_TABLE.variant(kind.dtype, self.rows, experts=kind.experts)
        self.sides = [*small_batch_variants(kind.dtype, self.rows), *self.weights.ggml]
        self.sides += [PLAIN_READ] * self.weights.everything

    @property
    def question(self) -> FewRows:
        return FewRows(self.weights.kind.dtype, self.rows, self.weights.kind.experts)

    def warm_up(self, end: float) -> None:
        """Read all weights once, as far as there is time."""
        left = sum(tensor.nbytes for tensor in self.weights.tensors)
        while left > 0 and time.perf_counter() < end:
            self._sample(self.start)
            left -= SAMPLE_BYTES

    def take_turn(self, turn: int, end: float) -> bool:
        """Measure each kernel once more; False where the time is over before."""
        seconds: dict[str, float] = {}
        for name in self.sides:
            if time.perf_counter() > end:
                return False
            seconds[name] = self._sample(name)
        self.turns.append(seconds)
        late = turn - UNDISTURBED * self.weights.everything
        if late < 0:
            return True
        so_far = self.seconds()
        limit = BEHIND[min(late, len(BEHIND) - 1)] * min(so_far[name] for name in so_far if name != PLAIN_READ)
        self.sides = [name for name in self.sides if name in (PLAIN_READ, self.start) or so_far[name] <= limit]
        return True

    def seconds(self) -> dict[str, float]:
        """Seconds per GB, by kernel: the start's median, times the median of how many times as long another took."""
        if self.weights.everything:
            return {name: min(turn[name] for turn in self.turns if name in turn) for name in self.turns[0]}
        start = float(np.median([turn[self.start] for turn in self.turns]))
        compared: dict[str, list[float]] = {}
        for turn in self.turns:
            for name, seconds in turn.items():
                compared.setdefault(name, []).append(seconds / turn[self.start])
        return {name: start * float(np.median(ratios)) for name, ratios in compared.items()}

    def _sample(self, name: str) -> float:
        """Seconds per GB. Each product has activations of its own: our kernels would round shared ones once."""
        weights = self.weights.copies if name == REPACKED else self.weights.take()
        experts = self.weights.kind.experts
        with Context(self.backend) as ctx:
            inputs, results = [], []
            for weight in weights:
                n = weight.dim(0)
                inputs.append(ctx.input("f32", (n, 1, self.rows) if experts else (n, self.rows)))
                results.append(product(ctx, name, weight, inputs[-1], self.rows, experts=experts))
            ctx.forward(*results)
            ctx.alloc()
            for x in inputs:
                x.set(np.full(x.shape[::-1], 0.5, np.float32))
            begin = time.perf_counter()
            ctx.compute()
            took = time.perf_counter() - begin
        return took / sum(weight.nbytes for weight in weights) * 1e9
