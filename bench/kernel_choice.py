"""The table of `ollama_engine/ml/weights/kernel_choice.py`, measured on this machine.

    python bench/kernel_choice.py                       # minutes; --quick for fewer shapes and rows
    python bench/kernel_choice.py --types q4_K --threads 1 2
    python bench/kernel_choice.py --rows 1 8 64 --unit us
    python bench/kernel_choice.py --memory              # with weights that no cache holds; up to 16 rows and with every
                                                        # way of reading: `ollama-engine bench --kernels`
    python bench/kernel_choice.py --experts             # a mixture of experts; rows are tokens
    python bench/kernel_choice.py --instructions avx2   # as on a CPU that has no better

For each weight type, number of threads and number of rows: the speed of our small-batch kernel and of ggml's two
(weights as in the file, and repacked) over the shapes of a 1B model (or of qwen3-moe's gate), and how many times as
fast ours is as the faster of those. `*` marks what the table chooses on this CPU, or on `--cpu`. Kernels take turns;
the best round counts.

ggml is the one of this build. To compare with the one for a lesser CPU, build with
`OLLAMA_ENGINE_PORTABLE=ON OLLAMA_ENGINE_CPU_VARIANTS=skylakex` (or another of its variants), which leaves it no choice.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for when this file is run as a program

from bench.products import TYPES, Kernel, Matrices, Product, Times, bytes_from_memory, compare, ggml_kernels, matrices
from ollama_engine.errors import EngineError
from ollama_engine.ml import ops
from ollama_engine.ml.device.cpu_facts import cpu_identity
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.ops.small_batch import SMALL_BATCH_QUANTIZED, small_batch_instructions
from ollama_engine.ml.weights.kernel_choice import TABLE, THIS_CPU, choice_by_table

ROWS = (1, 2, 4, 8, 16, 32, 64, 256, 512)
QUICK_ROWS = (1, 4, 8, 32, 64, 256)
SHAPES = ((2048, 8192), (8192, 2048), (2048, 2048))
EXPERTS = (2048, 768, 64, 8)
"""The experts of qwen3-moe: weights of a row, rows, experts, and how many of them a token takes."""
KERNELS = ("ours", "ggml", "repacked")


@dataclass(frozen=True)
class Question:
    """The products that a row of the table measures."""

    dtype: str
    shapes: tuple[tuple[int, int], ...]
    instructions: str | None
    """None: the best of this CPU."""
    nbytes: int = 0
    """Bytes of weights, more than a cache holds; 0: one matrix of each shape."""
    n_expert: int = 0
    used: int = 0

    def products(self, rows: int) -> list[Product]:
        """One for every shape."""
        return [Product(self.dtype, k, m, rows, self.n_expert, self.used) for k, m in self.shapes]

    def operations(self, rows: int) -> int:
        """Multiplications and additions of these."""
        return sum(product.operations for product in self.products(rows))

    def is_ours(self, cpu: str, rows: int) -> bool:
        """Whether the table chooses our kernel on this kind of CPU."""
        choice = choice_by_table(cpu)
        if self.n_expert:
            return rows * self.used <= choice.rows_per_expert(self.dtype) * self.n_expert
        return rows in choice.rows(self.dtype, self.shapes[0][0])


def main() -> None:
    """Measure and print, type by type, so that a table that takes long is seen growing."""
    args = parser().parse_args()
    rows = args.rows or (QUICK_ROWS if args.quick else ROWS)
    print(f"{cpu_identity()}, {'GOP/s' if args.unit == 'gops' else 'microseconds'}\n")
    print(f"| type | threads | kernel | {' | '.join(map(str, rows))} |\n|---|---:|---|{'---:|' * len(rows)}")
    for threads in args.threads:
        with Backend(BackendParams(threads=threads), max_nodes=1024) as backend:
            for dtype in args.types:
                question = question_of(dtype, args)
                found = measure(backend, question, rows)
                print("\n".join(lines(question, threads, rows, found, args.unit, args.cpu)), flush=True)


def question_of(dtype: str, args: argparse.Namespace) -> Question:
    nbytes = bytes_from_memory() if args.memory else 0
    if args.experts:
        k, m, n_expert, used = EXPERTS
        return Question(dtype, ((k, m),), args.instructions, nbytes, n_expert, used)
    return Question(dtype, SHAPES[:1] if args.quick else SHAPES, args.instructions, nbytes)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="one shape and fewer rows")
    made.add_argument("--memory", action="store_true", help="read weights from memory, not from a cache")
    made.add_argument("--experts", action="store_true", help="of a mixture of experts, for 1, 2, ... tokens")
    made.add_argument("--types", nargs="+", choices=TYPES, default=TYPES)
    made.add_argument("--threads", nargs="+", type=int, default=[1], metavar="N")
    made.add_argument("--rows", nargs="+", type=int, metavar="N")
    made.add_argument("--unit", choices=("gops", "us"), default="gops")
    made.add_argument("--instructions", help="those of our kernels; left out, the best of this CPU")
    made.add_argument("--cpu", choices=("", *TABLE), default=THIS_CPU, help="whose choice `*` marks")
    return made


def lines(
    question: Question, threads: int, rows: tuple[int, ...], times: list[Times], unit: str, cpu: str
) -> Iterator[str]:
    """A line of the table for each kernel that is there, and one of ratios."""
    name = small_batch_instructions(question.dtype)
    titles = {"ours": f"ours, {question.instructions or name[-1]}" if name else "ours"}
    for kernel in KERNELS:
        if kernel not in times[0]:
            continue
        cells = []
        for n, speeds in zip(rows, times, strict=True):
            seconds = speeds[kernel]
            cells.append(f"{question.operations(n) / seconds / 1e9:.1f}" if unit == "gops" else f"{seconds * 1e6:.0f}")
        yield f"| {question.dtype} | {threads} | {titles.get(kernel, kernel)} | {' | '.join(cells)} |"
    if "ours" in times[0]:
        marks = ("*" if question.is_ours(cpu, n) else "" for n in rows)
        cells = [f"{ratio(speeds):.2f}{mark}" for speeds, mark in zip(times, marks, strict=True)]
        yield f"| {question.dtype} | {threads} | **ratio** | {' | '.join(cells)} |"


def ratio(speeds: Times) -> float:
    """How many times as fast our kernel is as the faster one of ggml's."""
    return min(seconds for kernel, seconds in speeds.items() if kernel != "ours") / speeds["ours"]


def measure(backend: Backend, question: Question, rows: tuple[int, ...]) -> list[Times]:
    """All kernels, over all shapes, for each number of rows."""
    totals: list[Times] = [{} for _ in rows]
    for number, first in enumerate(question.products(1)):
        with matrices(backend, first, question.nbytes) as found:
            for n, total in zip(rows, totals, strict=True):
                of = question.products(n)[number]
                for kernel, seconds in compare(backend, of, found, _sides(question, of, found)).items():
                    total[kernel] = total.get(kernel, 0.0) + seconds
    return totals


def _sides(question: Question, of: Product, stored: Matrices) -> dict[str, Kernel]:
    """Our kernel is asked for, whatever the table chooses; types that it does not know are ggml's alone."""
    ours = ops.mul_mat_id_small_batch if question.n_expert else ops.mul_mat_small_batch
    known = SMALL_BATCH_QUANTIZED if question.n_expert else TYPES
    sides = {"ours": Kernel(lambda *operands: ours(*operands, question.instructions))}
    return (sides if question.dtype in known else {}) | ggml_kernels(of, stored)


if __name__ == "__main__":
    try:
        main()
    except EngineError as error:
        sys.exit(f"error: {error}")
