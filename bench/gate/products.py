"""Products: the kernel that the engine chooses here, beside ggml's with the original and with a repacked copy."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from bench.gate.verdict import OURS, READ, Group, Measured
from bench.kernel_choice import EXPERTS
from bench.products import (
    PLAIN_READ,
    TYPES,
    Matrices,
    Product,
    Times,
    chosen_kernel,
    chosen_of_ggml,
    compare,
    ggml_kernels,
    matrices,
)
from bench.targets import FLOORS
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.ops.small_batch import SMALL_BATCH_QUANTIZED

ROWS = (1, 2, 8, 64, 512)
QUICK_TYPES = ("q4_K", "q6_K", "q4_0", "q8_0", "mxfp4", "f16")
"""One of each way to unpack: blocks of 256 with and without minima, nibbles, bytes, a table of levels, floats."""
QUICK_EXPERTS = ("q4_K", "q8_0", "mxfp4")
FROM_MEMORY, FROM_CACHE = (2048, 1024), (2048, 512)
"""Weights of one matrix: many of the first are multiplied in turn, one of the second again and again."""
FEW_ROWS = 2
"""Up to so many rows, memory is the limit, and a plain read is shown."""


@dataclass(frozen=True)
class Machine:
    """What all products are measured with."""

    backend: Backend
    nbytes: int
    """Bytes of the weights that are read from memory."""


def groups(machine: Machine, *, everything: bool) -> Iterator[Group]:
    """A group of `ROWS` for each type and place to read from."""
    for dtype in TYPES if everything else QUICK_TYPES:
        yield _group(machine, "product from memory", Product(dtype, *FROM_MEMORY, 1))
        yield _group(machine, "product from cache", Product(dtype, *FROM_CACHE, 1))
    k, m, n_expert, used = EXPERTS
    for dtype in SMALL_BATCH_QUANTIZED if everything else QUICK_EXPERTS:
        yield _group(machine, "experts from memory", Product(dtype, k, m, 1, n_expert, used))


def _group(machine: Machine, kind: str, one: Product) -> Group:
    title = f"{one.dtype} {kind}"
    unit = "token" if one.n_expert else "row"
    products = {f"{title}, {n} {unit}{'s' * (n > 1)}": replace(one, rows=n) for n in ROWS}
    from_memory = kind.endswith("memory")

    def measure(chosen: Collection[str]) -> Iterator[tuple[str, Measured]]:
        with matrices(machine.backend, one, machine.nbytes if from_memory else 0) as stored:
            for name in chosen:
                of = products[name]
                times = _times(machine.backend, of, stored)
                yield name, _with_plain_read(machine, of, stored, times) if from_memory else Measured(times)

    return Group(title, {name: _floor(kind, of.rows) for name, of in products.items()}, measure)


def _floor(kind: str, rows: int) -> float:
    return FLOORS[f"{kind}, few rows" if kind == "product from cache" and rows <= FEW_ROWS else kind]


def _times(backend: Backend, of: Product, stored: Matrices) -> Times:
    """Where the engine takes one of ggml's kernels, that is not measured twice: chance would tell the two apart."""
    sides = ggml_kernels(of, stored)
    if (same := chosen_of_ggml(backend, of, stored)) is not None:
        times = compare(backend, of, stored, sides)
        return {OURS: times[same]} | times
    return compare(backend, of, stored, {OURS: chosen_kernel(of)} | sides)


def _with_plain_read(machine: Machine, product: Product, stored: Matrices, times: Times) -> Measured:
    if product.rows > FEW_ROWS:
        return Measured(times)
    everything = compare(machine.backend, product, stored, {READ: PLAIN_READ})[READ]
    return Measured(times | {READ: everything * product.read_bytes / product.matrix_bytes}, product.read_bytes)
