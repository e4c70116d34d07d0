"""Weights to measure kernels with: parts of a model's matrices, as they lie in its file.

A sample multiplies some weights of one kind, a few MiB in all, with one kernel. Samples go through all weights of a
kind in a circle, so that none finds its weights in a cache. ggml's kernels take part only where a row of their results
has the same bits with any few rows beside it: an answer must not depend on its company.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
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
)
from ollama_engine.ml.weights.kernel_timings import GGML, REPACKED

__all__ = ["PLAIN_READ", "Kind", "Samples", "Weighed", "kinds_of", "most_bytes"]

PLAIN_READ = "read"
"""The name under which reading the weights, and nothing else, is measured."""
SAMPLE_BYTES = 8 << 20
"""What a sample reads at least: about 0.2 ms."""
MOST_PARTS = 256
"""Most products of a sample: of small matrices they read less."""
PART_BYTES = 4 << 20
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


# -- samples -----------------------------------------------------------------------------------------------------------


class Samples:
    """The parts of a kind as tensors, which are taken in a circle, and those of ggml's kernels that take part."""

    def __init__(
        self, backend: Backend, files: Sequence[mmap.mmap], kind: Kind, infos: Sequence[TensorInfo], undo: ExitStack
    ) -> None:
        self.kind = kind
        self._backend = backend
        self._files = files
        self._mapped = _mapped(backend, files, kind, _parts(infos), undo)
        self.tensors = [tensor for tensor, _ in self._mapped]
        self.copies: list[Tensor] = []
        """One sample, repacked. Reading the others meanwhile drives it out of the caches."""
        self.ggml: list[str] = []
        self._at = 0

    def add_ggml(self, undo: ExitStack, *, everything: bool) -> None:
        """Have ggml's kernel take part, that of a repacked copy if there is one; `everything`: both."""
        first = [part for _, part in self._mapped[: len(self.take())]]
        if first and all(can_repack(self._backend, self.kind.dtype, part.shape) for part in first):
            storage = undo.enter_context(Storage(self._backend, len(first)))
            self.copies = [storage.add(str(i), self.kind.dtype, part.shape) for i, part in enumerate(first)]
            storage.allocate_repacked()
            storage.fill({str(i): _content(self._files[part.file], part) for i, part in enumerate(first)})
        best = REPACKED if self.copies else GGML
        self.ggml = list(dict.fromkeys((GGML, best))) if everything else [best] if self._is_steady(best) else []

    @property
    def circle(self) -> int:
        """How many samples all weights are."""
        return -(-sum(tensor.nbytes for tensor in self.tensors) // SAMPLE_BYTES)

    def take(self) -> list[Tensor]:
        """The next sample."""
        taken: list[Tensor] = []
        most = min(len(self.tensors), MOST_PARTS)
        while sum(tensor.nbytes for tensor in taken) < SAMPLE_BYTES and len(taken) < most:
            taken.append(self.tensors[self._at])
            self._at = (self._at + 1) % len(self.tensors)
        return taken

    def seconds(self, name: str, rows: int) -> float:
        """Seconds per GB of a sample by the kernel of this name, with so many rows of activations.

        Each product has activations of its own: our kernels would round shared ones once.
        """
        weights = self.copies if name == REPACKED else self.take()
        experts = self.kind.experts
        with Context(self._backend) as ctx:
            inputs, results = [], []
            for weight in weights:
                n = weight.dim(0)
                inputs.append(ctx.input("f32", (n, 1, rows) if experts else (n, rows)))
                results.append(_product(ctx, name, weight, inputs[-1], rows, experts=experts))
            ctx.forward(*results)
            ctx.alloc()
            for x in inputs:
                x.set(np.full(x.shape[::-1], 0.5, np.float32))
            begin = time.perf_counter()
            ctx.compute()
            took = time.perf_counter() - begin
        return took / sum(weight.nbytes for weight in weights) * 1e9

    def _is_steady(self, name: str) -> bool:
        weight = (self.copies if name == REPACKED else self.tensors)[0]
        values = np.random.default_rng(0).normal(0, 1, (max(STEADY_ROWS), weight.dim(0))).astype(np.float32)
        results = set()
        for rows in STEADY_ROWS:
            with Context(self._backend) as ctx:
                x = ctx.from_floats(values[:rows, None] if self.kind.experts else values[:rows])
                y = _product(ctx, name, weight, x, rows, experts=self.kind.experts)
                ctx.forward(y)
                ctx.compute()
                results.add(y.numpy().reshape(rows, -1)[0].tobytes())
        return len(results) == 1


def _product(ctx: Context, name: str, weight: Tensor, x: Tensor, rows: int, *, experts: bool) -> Tensor:
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
