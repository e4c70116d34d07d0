"""Which kernel and which copy of a weight a product reads: one table, by CPU, weight type and number of rows.

`mul_mat` is ggml's, on the weights as they lie in the file or on a repacked copy; `mul_mat_small_batch` is our own.
`python bench/kernel_choice.py` measures the table for the machine it runs on, beside this one.
"""

from __future__ import annotations

from functools import cache
from itertools import islice
from typing import NamedTuple

from ollama_engine.ml import ops
from ollama_engine.ml.ops_experts import suits_small_batch_experts
from ollama_engine.ml.ops_small_batch import small_batch_fastest, suits_small_batch
from ollama_engine.ml.tensor import Tensor

__all__ = [
    "MOST_ROWS",
    "SMALL_BATCH",
    "SmallBatch",
    "choose_copy",
    "expert_product",
    "is_intel",
    "product",
    "small_batch_rows",
]

MOST_ROWS = 512
"""The most rows measured."""

REPACKED_ROWS = 16
"""Products of K-quants with fewer rows read the repacked copy: for more, ggml has a faster kernel for the original."""

SHORT = 2048
"""Rows of BF16 weights up to this length are served as the table says. For longer ones, whose activations do not stay
in the first cache, ggml is ahead with AVX-512, which has an instruction for BF16."""


class SmallBatch(NamedTuple):
    """For which products our own kernel is faster than ggml's, or as fast."""

    first: int
    """Rows of activations, at least."""
    last: int
    """Rows of activations, at most."""
    per_expert: int = 0
    """Rows for each expert, were they shared out evenly, at most; 0 where there is no such kernel."""


SMALL_BATCH: dict[str, dict[str, SmallBatch]] = {
    "avx512": {
        "q4_K": SmallBatch(1, 32, 64),
        "q6_K": SmallBatch(1, 32, 64),
        "q4_0": SmallBatch(1, 512, 256),
        "q8_0": SmallBatch(1, 512, 256),
        "mxfp4": SmallBatch(1, 512, 256),
        "f16": SmallBatch(1, 6),
        "bf16": SmallBatch(1, 4),
    },
    "avxvnni": {
        "q4_K": SmallBatch(1, 512),
        "q6_K": SmallBatch(2, 512),
        "q4_0": SmallBatch(1, 512),
        "q8_0": SmallBatch(1, 512),
    },
    "avx2": {
        "q4_K": SmallBatch(1, 512),
        "q6_K": SmallBatch(2, 64),
        "q4_0": SmallBatch(1, 512),
        "q8_0": SmallBatch(1, 512),
        "f16": SmallBatch(1, 4),
        "bf16": SmallBatch(1, 8),
    },
}
"""By instructions of the CPU ("avx512" has VNNI) and type of the weight. Measured on AMD Zen 4 and Zen 5, those of
AVX2 and AVX-VNNI beside a ggml without AVX-512."""

INTEL: dict[str, dict[str, SmallBatch]] = {"avx512": {"q4_K": SmallBatch(1, 512, 64), "q6_K": SmallBatch(1, 64, 64)}}
"""Where an Intel CPU differs, measured on a Xeon with AVX-512 VNNI and AMX; docs/performance.md has the figures."""

_NONE = SmallBatch(1, 0)


def small_batch_rows(instructions: str, dtype: str, length: int, *, intel: bool = False) -> range:
    """The numbers of rows for which `mul_mat_small_batch` is chosen, with weights whose rows have that length."""
    chosen = SMALL_BATCH.get(instructions, {}).get(dtype, _NONE)
    if intel:
        chosen = INTEL.get(instructions, {}).get(dtype, chosen)
    first, last, _ = chosen
    if (instructions, dtype) == ("avx512", "bf16") and length > SHORT:
        last = 1
    return range(first, last + 1)


@cache
def _rows_here(dtype: str, length: int) -> range:
    return small_batch_rows(small_batch_fastest(dtype), dtype, length, intel=is_intel())


@cache
def is_intel() -> bool:
    """Whether the CPU is one of Intel's; False where the system does not say."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return any(line.startswith("vendor_id") and "GenuineIntel" in line for line in islice(file, 8))
    except OSError:
        return False


@cache
def _rows_per_expert(dtype: str) -> int:
    return SMALL_BATCH.get(small_batch_fastest(dtype), {}).get(dtype, _NONE).per_expert


def choose_copy(weight: Tensor, rows: int) -> Tensor:
    """The copy of a weight that ggml multiplies the faster with that many rows."""
    if weight.repacked is not None and (rows < REPACKED_ROWS or not weight.dtype.endswith("_K")):
        return weight.repacked
    return weight


def product(weight: Tensor, x: Tensor) -> Tensor:
    """weight [n, m] times x [n, rows] -> f32 [m, rows], by the kernel and copy of the weight that suit the rows."""
    rows = x.dim(1)
    if rows in _rows_here(weight.dtype, weight.dim(0)) and x.dim(2) == x.dim(3) == 1 and suits_small_batch(weight):
        return ops.mul_mat_small_batch(weight, x)
    return ops.mul_mat(choose_copy(weight, rows), x)


def expert_product(experts: Tensor, x: Tensor, ids: Tensor) -> Tensor:
    """experts [in, out, experts], x [in, used or 1, n], ids [used, n] -> [out, used, n], by the kernel that suits."""
    rows = ids.dim(0) * ids.dim(1)
    if rows <= _rows_per_expert(experts.dtype) * experts.dim(2) and suits_small_batch_experts(experts):
        return ops.mul_mat_id_small_batch(experts, x, ids)
    return ops.mul_mat_id(choose_copy(experts, x.dim(2)), x, ids)
