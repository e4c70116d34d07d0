"""`ollama-engine bench --kernels`: how fast kernels of few rows read weights, beside reading and nothing else.

Of each kernel the fastest of several turns counts: whatever disturbs a turn only makes it slower.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Collection, Iterator, Mapping
from math import prod
from typing import Any

from ollama_engine.cli.measure.bench.parts import Show
from ollama_engine.cli.tables import pairs, table
from ollama_engine.ml.device.cpu_facts import cpu_identity
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.gguf.gguf_file import TensorInfo
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.types import block_of
from ollama_engine.ml.ops.small_batch import SMALL_BATCH_QUANTIZED, SMALL_BATCH_VARIANTS, small_batch_instructions
from ollama_engine.ml.weights.kernel_choice import BY_TABLE, KernelChoice
from ollama_engine.ml.weights.kernel_measure import measure
from ollama_engine.ml.weights.kernel_samples import PLAIN_READ, Kind, kinds_of, most_bytes
from ollama_engine.ml.weights.kernel_timings import GGML, REPACKED, decide
from ollama_engine.ml.weights.kernel_variants import FewRows

__all__ = ["ALL_TYPES", "kernel_report", "kernel_speeds"]

ALL_TYPES = (*SMALL_BATCH_QUANTIZED, "f16", "bf16")
FEW = (1, 2, 4, 8, 16)
"""Rows of activations."""
ROW, ROWS, EXPERTS = 2048, 512, 8
"""Weights of a row, rows of an expert, and how many experts there are at least."""
FILL = b"\x2c"
"""Made of this byte, weights of every type are small numbers: neither infinite nor subnormal, which is slow."""
SECONDS = 8.0
"""For one type; less is used where nothing else runs."""
LEGEND = f"""\
*        what an engine takes here, once it has measured this
{PLAIN_READ}     reading the weights, and nothing else
spread   our kernel, fetching weights into L1 a few lines ahead; burst: all of a step at once; l2: into L2;
         deep: as spread, and further on into L2; none: as the CPU fetches by itself; -2: from two places at once;
         -rows: 16 rows of weights at a time for 2 to 8 rows of activations, too, where there would be 4
{GGML}     ggml's kernel; {REPACKED}: that of a copy with rows interleaved
of read  the fastest of ours beside a plain read; of {GGML}: beside the faster one of ggml's"""
COLUMNS = (PLAIN_READ, *SMALL_BATCH_VARIANTS, GGML, REPACKED)


def kernel_speeds(dtypes: Collection[str], threads: int | None, show: Show) -> dict[str, Any]:
    """GB of weights per second by kernel, for each type, as matrices and as experts, and number of rows.

    All types take a minute or more: `show` is told which one is measured.
    """
    rows: list[dict[str, Any]] = []
    with Backend(BackendParams(threads=threads, devices=()), max_nodes=64) as backend:
        all_weights = list(_made_up(dtypes))
        for number, info in enumerate(all_weights, 1):
            experts = " experts" * (len(info.shape) > 2)
            show(f"kernels of {info.dtype}{experts}: {number} of {len(all_weights)}, {SECONDS:.0f} s each at most")
            with mmap.mmap(-1, -(-info.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE) as memory:
                _ask_for_large_pages(memory)
                memory.write(FILL * info.nbytes)
                timings = measure(backend, [memory], kinds_of([info]), SECONDS, FEW, everything=True)
            choice = decide(BY_TABLE, timings)
            rows += [
                {
                    **few._asdict(),
                    "chosen": _chosen(choice, few, times),
                    "gb_per_second": {name: 1 / seconds for name, seconds in times.items()},
                }
                for few, times in timings.items()
            ]
        return {"cpu": cpu_identity(), "threads": backend.threads, "kernels": rows}


def _ask_for_large_pages(memory: mmap.mmap) -> None:
    """As an engine does for its weights, where the system knows them."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)


def _chosen(choice: KernelChoice, few: FewRows, times: Mapping[str, float]) -> str:
    """The column of the kernel that an engine takes after measuring the same."""
    ours = few.rows <= choice.rows_per_expert(few.dtype) if few.experts else few.rows in choice.rows(few.dtype, ROW)
    if ours:
        variant = choice.variant(few.dtype, few.rows, experts=few.experts)
        return variant if variant in times else variant.removesuffix("-rows")  # of many rows they are the same
    return REPACKED if REPACKED in times and choice.wants_repacked(few.dtype, experts=few.experts) else GGML


def _made_up(dtypes: Collection[str]) -> Iterator[TensorInfo]:
    """Weights of each type, as a matrix and as experts, more than a cache holds."""
    for kind in (Kind(dtype, experts) for dtype in dtypes for experts in (False, True)):
        if kind.experts and kind.dtype not in SMALL_BATCH_QUANTIZED:
            continue
        block, size = block_of(kind.dtype)
        one = (ROW, ROWS) if kind.experts else (ROW,)
        nbytes = prod(one) // block * size
        shape = (*one, most_bytes() // nbytes + EXPERTS)
        yield TensorInfo("blk.0.weight", kind.dtype, shape, 0, nbytes * shape[-1], 0)


def kernel_report(result: dict[str, Any]) -> str:
    """The table, with the fastest of our kernels beside a plain read and beside ggml's, and a legend."""
    rows = [("type", "rows", *COLUMNS, f"of {PLAIN_READ}", f"of {GGML}")]
    for row in result["kernels"]:
        speeds = row["gb_per_second"]
        best = max(speed for name, speed in speeds.items() if name in SMALL_BATCH_VARIANTS)
        cells = (
            f"{speeds[name]:.1f}{'*' if name == row['chosen'] else ' '}" if name in speeds else "- " for name in COLUMNS
        )
        title = f"{row['dtype']}{' experts' * row['experts']}"
        beside = (speeds[PLAIN_READ], max(speed for name, speed in speeds.items() if name in (GGML, REPACKED)))
        rows.append((title, str(row["rows"]), *cells, *(f"{best / other:.2f}" for other in beside)))
    told = pairs((("CPU", result["cpu"]), ("threads", str(result["threads"])), ("instructions", _instructions())))
    return f"{told}\n\nGB of weights per second\n{table(rows, right=range(1, len(rows[0])))}\n\n{LEGEND}"


def _instructions() -> str:
    return small_batch_instructions("q4_0")[-1]
