"""`ollama-engine bench --kernels`: how fast kernels of few rows read weights, beside reading and nothing else."""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterator
from math import prod
from typing import Any

from ollama_engine.cli.tables import pairs, table
from ollama_engine.ml.device.cpu_facts import cpu_identity
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.gguf.gguf_file import TensorInfo
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.types import block_of
from ollama_engine.ml.ops.small_batch import SMALL_BATCH_QUANTIZED, SMALL_BATCH_VARIANTS, small_batch_instructions
from ollama_engine.ml.weights.kernel_measure import PLAIN_READ, Kind, kinds_of, measure, most_bytes
from ollama_engine.ml.weights.kernel_timings import GGML, REPACKED

__all__ = ["ALL_TYPES", "kernel_report", "kernel_speeds"]

ALL_TYPES = (*SMALL_BATCH_QUANTIZED, "f16", "bf16")
ROW, ROWS, EXPERTS = 2048, 512, 8
"""Weights of a row, rows of an expert, and how many experts there are at least."""
FILL = b"\x2c"
"""Made of this byte, weights of every type are small numbers: neither infinite nor subnormal, which is slow."""
SECONDS = 5.0
"""For one type; less than one is used where nothing else runs."""
COLUMNS = (PLAIN_READ, *SMALL_BATCH_VARIANTS, GGML, REPACKED)


def kernel_speeds(dtypes: Collection[str], threads: int | None) -> dict[str, Any]:
    """GB of weights per second by kernel, for each type, as matrices and as experts, and number of rows."""
    rows: list[dict[str, Any]] = []
    with Backend(BackendParams(threads=threads, devices=()), max_nodes=64) as backend:
        for info in _made_up(dtypes):
            with mmap.mmap(-1, -(-info.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE) as memory:
                memory.write(FILL * info.nbytes)
                timings = measure(backend, [memory], kinds_of([info]), SECONDS, everything=True)
            rows += [
                {**few._asdict(), "gb_per_second": {name: 1 / seconds for name, seconds in times.items()}}
                for few, times in timings.items()
            ]
        return {"cpu": cpu_identity(), "threads": backend.threads, "kernels": rows}


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
    """The table, with the share of a plain read's speed that the fastest of our kernels reaches."""
    rows = [("type", "rows", *COLUMNS, "share")]
    for row in result["kernels"]:
        speeds = row["gb_per_second"]
        best = max(speed for name, speed in speeds.items() if name in SMALL_BATCH_VARIANTS)
        cells = (f"{speeds[name]:.1f}" if name in speeds else "-" for name in COLUMNS)
        title = f"{row['dtype']}{' experts' * row['experts']}"
        rows.append((title, str(row["rows"]), *cells, f"{best / speeds[PLAIN_READ]:.2f}"))
    told = pairs((("CPU", result["cpu"]), ("threads", str(result["threads"])), ("instructions", _instructions())))
    return f"{told}\n\nGB of weights per second\n{table(rows, right=range(1, len(rows[0])))}"


def _instructions() -> str:
    return small_batch_instructions("q4_0")[-1]
