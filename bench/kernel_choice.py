"""The table of `ollama_engine/ml/kernel_choice.py`, measured on this machine.

    python bench/kernel_choice.py               # minutes; --quick for fewer shapes and rows
    python bench/kernel_choice.py --types q4_K

For each weight type and number of rows: how many times as fast our small-batch kernel is as the faster of ggml's two
(weights as in the file, and repacked), over the shapes of a 1B model; one thread. `*` marks what the table chooses.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import numpy as np

from ollama_engine.ml import ops
from ollama_engine.ml.backend import Backend
from ollama_engine.ml.context import Context
from ollama_engine.ml.kernel_choice import THIS_CPU, small_batch_rows
from ollama_engine.ml.ops_small_batch import reads_in_place, small_batch_instructions
from ollama_engine.ml.placement import BackendParams
from ollama_engine.ml.quantize import quantize_rows
from ollama_engine.ml.storage import Storage, can_repack
from ollama_engine.ml.tensor import Tensor
from ollama_engine.ml.types import block_of

ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512)
QUICK_ROWS = (1, 4, 8, 32, 64, 256)
SHAPES = ((2048, 8192), (8192, 2048), (2048, 2048))
TYPES = ("q4_K", "q6_K", "q4_0", "q8_0", "mxfp4", "f16", "bf16")
DISTINCT = 32
"""Rows of weights that differ: quantizing them all takes longer than measuring."""


def main() -> None:
    """Measure and print, row by row, so that a table that takes long is seen growing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--types", nargs="+", choices=TYPES, default=TYPES)
    args = parser.parse_args()
    rows, shapes = (QUICK_ROWS, SHAPES[:1]) if args.quick else (ROWS, SHAPES)
    print(f"{cpu_name()}\n\n| type | kernel | {' | '.join(map(str, rows))} |\n|---|---|{'---:|' * len(rows)}")
    with Backend(BackendParams(threads=1), max_nodes=64) as backend:
        for dtype in args.types:
            print(f"| {dtype} | {small_batch_instructions(dtype)[-1]} |", end="", flush=True)
            for n in rows:
                ratio = statistics.median(faster(backend, dtype, shape, n) for shape in shapes)
                chosen = "*" if n in small_batch_rows(THIS_CPU, dtype, shapes[0][0]) else ""
                print(f" {ratio:.2f}{chosen} |", end="", flush=True)
            print()


def faster(backend: Backend, dtype: str, shape: tuple[int, int], rows: int) -> float:
    """How many times as fast our kernel is as the faster one of ggml's; the best of several rounds of each."""
    k, m = shape
    values = np.random.default_rng(1).normal(0, 1, (rows, k)).astype(np.float32)
    with Storage(backend, 1) as plain, Storage(backend, 1) as copy:
        weight = plain.add("w", dtype, shape)
        plain.allocate(0)
        weights = [weight]
        if can_repack(backend, dtype, shape):
            weights.append(copy.add("w", dtype, shape))
            copy.allocate_repacked()
        for each in weights:
            each.set_bytes(random_weights(dtype, k, m))
        if not reads_in_place(weight):
            return 0.0
        ours = seconds(backend, weight, values, small_batch=True)
        return min(seconds(backend, each, values, small_batch=False) for each in weights) / ours


def random_weights(dtype: str, k: int, m: int) -> np.ndarray:
    """Weights of a type as bytes, [m, bytes of a row]."""
    block, size = block_of(dtype)
    raw = np.empty((DISTINCT, k // block * size), np.uint8)
    quantize_rows(dtype, np.random.default_rng(0).normal(0, 1, (DISTINCT, k)).astype(np.float32), raw.reshape(-1))
    return np.tile(raw, (m // DISTINCT, 1))


def seconds(backend: Backend, weight: Tensor, values: np.ndarray, *, small_batch: bool) -> float:
    """The shortest of several computations of one product."""
    with Context(backend) as ctx:
        x = ctx.input("f32", values.shape[::-1])
        ctx.forward((ops.mul_mat_small_batch if small_batch else ops.mul_mat)(weight, x))
        ctx.alloc()
        best = float("inf")
        for _ in range(max(3, 64 // len(values))):
            x.set(values)
            begin = time.perf_counter()
            ctx.compute()
            best = min(best, time.perf_counter() - begin)
        return best


def cpu_name() -> str:
    """What Linux says of the CPU."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return sys.platform


if __name__ == "__main__":
    main()
