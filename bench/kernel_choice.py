"""The table of `ollama_engine/ml/kernel_choice.py`, measured on this machine.

    python bench/kernel_choice.py                       # minutes; --quick for fewer shapes and rows
    python bench/kernel_choice.py --types q4_K --threads 1 2
    python bench/kernel_choice.py --rows 1 8 64 --unit us
    python bench/kernel_choice.py --instructions avx2   # as on a CPU that has no better

For each weight type, number of threads and number of rows: the speed of our small-batch kernel and of ggml's two
(weights as in the file, and repacked) over the shapes of a 1B model, and how many times as fast ours is as the faster
of those. `*` marks what the table chooses on this CPU, or on `--cpu`. The kernels take turns; the best round counts.

ggml is the one of this build. To compare with the one for a lesser CPU, build with
`OLLAMA_ENGINE_PORTABLE=ON OLLAMA_ENGINE_CPU_VARIANTS=skylakex` (or another of its variants), which leaves it no choice.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ollama_engine.errors import EngineError
from ollama_engine.ml import ops
from ollama_engine.ml.backend import Backend
from ollama_engine.ml.context import Context
from ollama_engine.ml.kernel_choice import TABLE, THIS_CPU, small_batch_rows
from ollama_engine.ml.ops_small_batch import small_batch_instructions
from ollama_engine.ml.placement import BackendParams
from ollama_engine.ml.quantize import TARGETS, quantize_rows
from ollama_engine.ml.storage import Storage, can_repack
from ollama_engine.ml.tensor import Tensor
from ollama_engine.ml.types import block_of

ROWS = (1, 2, 4, 8, 16, 32, 64, 256, 512)
QUICK_ROWS = (1, 4, 8, 32, 64, 256)
SHAPES = ((2048, 8192), (8192, 2048), (2048, 2048))
TYPES = tuple(dtype for dtype in TARGETS if dtype != "f32")
KERNELS = ("ours", "ggml", "ggml, repacked")
DISTINCT = 32
"""Rows of weights that differ: quantizing them all takes longer than measuring."""
TURNS = 4
TURN_SECONDS = 0.02
"""How long one turn computes, but two products at least."""

Speeds = dict[str, float]
"""Seconds of one product of every shape, by kernel; kernels that are not there are left out."""


@dataclass(frozen=True)
class Question:
    """What a row of the table measures."""

    dtype: str
    shapes: tuple[tuple[int, int], ...]
    instructions: str | None
    """None: the best of this CPU."""

    def operations(self, rows: int) -> int:
        """Multiplications and additions of one product of every shape."""
        return sum(2 * k * m * rows for k, m in self.shapes)


def main() -> None:
    """Measure and print, cell by cell, so that a table that takes long is seen growing."""
    args = parser().parse_args()
    rows = args.rows or (QUICK_ROWS if args.quick else ROWS)
    print(f"{cpu_name()}, {'GOP/s' if args.unit == 'gops' else 'microseconds'}\n")
    print(f"| type | threads | kernel | {' | '.join(map(str, rows))} |\n|---|---:|---|{'---:|' * len(rows)}")
    for threads in args.threads:
        with Backend(BackendParams(threads=threads), max_nodes=64) as backend:
            for dtype in args.types:
                question = Question(dtype, SHAPES[:1] if args.quick else SHAPES, args.instructions)
                found = []
                for n in rows:
                    print(f"\r{dtype}, {n} rows ", end="", file=sys.stderr, flush=True)
                    found.append(measure(backend, question, n))
                print("\r", end="", file=sys.stderr, flush=True)
                print("\n".join(lines(question, threads, rows, found, args.unit, args.cpu)), flush=True)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--quick", action="store_true", help="one shape and fewer rows")
    found.add_argument("--types", nargs="+", choices=TYPES, default=TYPES)
    found.add_argument("--threads", nargs="+", type=int, default=[1], metavar="N")
    found.add_argument("--rows", nargs="+", type=int, metavar="N")
    found.add_argument("--unit", choices=("gops", "us"), default="gops")
    found.add_argument("--instructions", help="those of our kernels; left out, the best of this CPU")
    found.add_argument("--cpu", choices=("", *TABLE), default=THIS_CPU, help="whose choice `*` marks")
    return found


def lines(
    question: Question, threads: int, rows: tuple[int, ...], found: list[Speeds], unit: str, cpu: str
) -> Iterator[str]:
    """A line of the table for each kernel that is there, and one of ratios."""
    name = small_batch_instructions(question.dtype)
    titles = {"ours": f"ours, {question.instructions or name[-1]}" if name else "ours"}
    for kernel in KERNELS:
        if kernel not in found[0]:
            continue
        cells = []
        for n, speeds in zip(rows, found, strict=True):
            seconds = speeds[kernel]
            cells.append(f"{question.operations(n) / seconds / 1e9:.1f}" if unit == "gops" else f"{seconds * 1e6:.0f}")
        yield f"| {question.dtype} | {threads} | {titles.get(kernel, kernel)} | {' | '.join(cells)} |"
    if "ours" in found[0]:
        chosen = small_batch_rows(cpu, question.dtype, question.shapes[0][0])
        cells = [f"{ratio(speeds):.2f}{'*' if n in chosen else ''}" for n, speeds in zip(rows, found, strict=True)]
        yield f"| {question.dtype} | {threads} | **ratio** | {' | '.join(cells)} |"


def ratio(speeds: Speeds) -> float:
    """How many times as fast our kernel is as the faster one of ggml's."""
    return min(seconds for kernel, seconds in speeds.items() if kernel != "ours") / speeds["ours"]


def measure(backend: Backend, question: Question, rows: int) -> Speeds:
    """All kernels, over all shapes."""
    total: Speeds = {}
    for shape in question.shapes:
        for kernel, seconds in take_turns(backend, question, shape, rows).items():
            total[kernel] = total.get(kernel, 0.0) + seconds
    return total


def take_turns(backend: Backend, question: Question, shape: tuple[int, int], rows: int) -> Speeds:
    """The shortest of several computations of each kernel that this build has."""
    values = np.random.default_rng(1).normal(0, 1, (rows, shape[0])).astype(np.float32)
    with weights_of(backend, question.dtype, shape) as weights:
        best = dict.fromkeys(weights, float("inf"))
        for _ in range(TURNS):
            for kernel, weight in weights.items():
                best[kernel] = min(best[kernel], seconds(backend, weight, values, kernel, question.instructions))
    return best


@contextmanager
def weights_of(backend: Backend, dtype: str, shape: tuple[int, int]) -> Iterator[dict[str, Tensor]]:
    """The weight that each kernel reads: ours and ggml's general one read the same."""
    with Storage(backend, 1) as plain, Storage(backend, 1) as copy:
        weight = plain.add("w", dtype, shape)
        plain.allocate(0)
        found = {"ours": weight, "ggml": weight} if small_batch_instructions(dtype) else {"ggml": weight}
        if can_repack(backend, dtype, shape):
            found["ggml, repacked"] = copy.add("w", dtype, shape)
            copy.allocate_repacked()
        content = random_weights(dtype, *shape)
        for each in {id(weight): weight for weight in found.values()}.values():
            each.set_bytes(content)
        yield found


def seconds(backend: Backend, weight: Tensor, values: np.ndarray, kernel: str, instructions: str | None) -> float:
    """The shortest of a few computations of one product."""
    with Context(backend) as ctx:
        x = ctx.input("f32", values.shape[::-1])
        ctx.forward(ops.mul_mat_small_batch(weight, x, instructions) if kernel == "ours" else ops.mul_mat(weight, x))
        ctx.alloc()
        best, spent, computed = float("inf"), 0.0, 0
        while computed < 2 or spent < TURN_SECONDS:
            x.set(values)
            begin = time.perf_counter()
            ctx.compute()
            took = time.perf_counter() - begin
            best, spent, computed = min(best, took), spent + took, computed + 1
        return best


def random_weights(dtype: str, k: int, m: int) -> np.ndarray:
    """Weights of a type as bytes, [m, bytes of a row]."""
    block, size = block_of(dtype)
    raw = np.empty((DISTINCT, k // block * size), np.uint8)
    quantize_rows(dtype, np.random.default_rng(0).normal(0, 1, (DISTINCT, k)).astype(np.float32), raw.reshape(-1))
    return np.tile(raw, (m // DISTINCT, 1))


def cpu_name() -> str:
    """What Linux says of the CPU."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return sys.platform


if __name__ == "__main__":
    try:
        main()
    except EngineError as error:
        sys.exit(f"error: {error}")
