"""Which kernel a product of a weight goes to, and which copy of the weight it reads, by the number of rows.

On the CPU there are three ways: our kernels for small batches and ggml's for anything, which both read the weight as
it lies in the file, and ggml's on a repacked copy. All give results of the same worth, so the fastest is taken. `TABLE`
says for each kind of CPU where ours are; `python bench/kernel_choice.py` measures it anew, and the figures are in
docs/performance.md. Other devices have ggml's kernels only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache

from ollama_engine.ml.ops_experts import mul_mat_id_small_batch
from ollama_engine.ml.ops_nn import mul_mat, mul_mat_id
from ollama_engine.ml.ops_small_batch import cpu_traits, mul_mat_small_batch, reads_in_place
from ollama_engine.ml.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Borders:
    """For which numbers of rows our kernels are faster than ggml's, or as fast, with one type of weights."""

    first: int
    """Fewest rows of activations; 1, unless ggml is faster with a single one."""
    last: int
    """Most rows of activations."""
    last_long: int | None = None
    """Most rows where those of the weight are longer than LONG; None: as `last`."""
    per_expert: int = 0
    """In a product of experts, the most rows for each expert, were they shared out evenly; 0: not measured."""


LONG = 2048
"""Activations of longer rows do not stay in the first cache."""

MEASURED = 512
"""The most rows that were measured."""

REPACKED_ROWS = 16
"""Products of K-quants with fewer rows read the repacked copy: for more, ggml has a faster kernel for the original."""

_AVX512_VNNI = {
    "q4_K": Borders(1, 32, per_expert=64),
    "q6_K": Borders(1, 32, per_expert=64),
    "q4_0": Borders(1, MEASURED, per_expert=256),
    "q8_0": Borders(1, MEASURED, per_expert=256),
    "mxfp4": Borders(1, MEASURED, per_expert=256),
    "f16": Borders(1, 6),
    "bf16": Borders(1, 4, last_long=1),
}

TABLE: Mapping[str, Mapping[str, Borders]] = {
    "avx512vnni": _AVX512_VNNI,
    "avx512vnni-intel": _AVX512_VNNI
    | {"q4_K": Borders(1, MEASURED, per_expert=64), "q6_K": Borders(1, 64, per_expert=64)},
    "avxvnni": {
        "q4_K": Borders(1, MEASURED),
        "q6_K": Borders(2, MEASURED),
        "q4_0": Borders(1, MEASURED),
        "q8_0": Borders(1, MEASURED),
        "f16": Borders(1, 4),
        "bf16": Borders(1, 8),
    },
    "avx2": {
        "q4_K": Borders(1, MEASURED),
        "q6_K": Borders(2, 64),
        "q4_0": Borders(1, MEASURED),
        "q8_0": Borders(1, MEASURED),
        "f16": Borders(1, 4),
        "bf16": Borders(1, 8),
    },
}
"""Measured on AMD Zen 4 and Zen 5 (those of AVX2 and AVX-VNNI beside a ggml without AVX-512), and on an Intel Xeon."""


def kind_of_cpu(traits: Collection[str]) -> str:
    """The row of TABLE for a CPU with these traits (see `cpu_traits`), or "" where ggml's kernels are used throughout.

    So are they with AVX-512 but without VNNI: there our kernels have AVX2 and ggml's have the wider vectors, and nobody
    has compared them.
    """
    if "avx512" in traits:
        if "avx512vnni" not in traits:
            return ""
        return "avx512vnni-intel" if "intel" in traits else "avx512vnni"
    return next((name for name in ("avxvnni", "avx2") if name in traits), "")


def small_batch_rows(cpu: str, dtype: str, length: int) -> range:
    """Numbers of rows for which our kernels are taken on such a CPU, with weights whose rows have that length."""
    borders = TABLE.get(cpu, {}).get(dtype)
    if borders is None:
        return range(0)
    last = borders.last_long if borders.last_long is not None and length > LONG else borders.last
    return range(borders.first, last + 1)


def rows_per_expert(cpu: str, dtype: str) -> int:
    """Most rows for each expert, were they shared out evenly, for which our kernels are taken on such a CPU."""
    borders = TABLE.get(cpu, {}).get(dtype)
    return borders.per_expert if borders is not None else 0


THIS_CPU = kind_of_cpu(cpu_traits())


@cache
def _rows_here(dtype: str, length: int) -> range:
    return small_batch_rows(THIS_CPU, dtype, length)


def wants_repacked(dtype: str, *, experts: bool) -> bool:
    """Whether products of such weights read a repacked copy on this CPU, if ggml can make one."""
    return not (rows_per_expert(THIS_CPU, dtype) if experts else _rows_here(dtype, LONG))


def choose_copy(weight: Tensor, rows: int) -> Tensor:
    """Whichever copy of a weight ggml multiplies faster with that many rows."""
    if weight.repacked is not None and (rows < REPACKED_ROWS or not weight.dtype.endswith("_K")):
        return weight.repacked
    return weight


def product(weight: Tensor, x: Tensor) -> Tensor:
    """weight [n, m] times x [n, rows] -> f32 [m, rows]."""
    rows = x.dim(1)
    if rows in _rows_here(weight.dtype, weight.dim(0)) and x.dim(2) == x.dim(3) == 1 and reads_in_place(weight):
        return mul_mat_small_batch(weight, x)
    return mul_mat(choose_copy(weight, rows), x)


def expert_product(experts: Tensor, x: Tensor, ids: Tensor) -> Tensor:
    """experts [n, m, e] times x [n, used or 1, tokens], of which ids [used, tokens] name the experts.

    -> f32 [m, used, tokens].
    """
    routes = ids.dim(0) * ids.dim(1)
    if routes <= rows_per_expert(THIS_CPU, experts.dtype) * experts.dim(2) and reads_in_place(experts):
        return mul_mat_id_small_batch(experts, x, ids)
    return mul_mat_id(choose_copy(experts, x.dim(2)), x, ids)
