"""The smallest blocks: linear maps, embeddings, norms."""

from __future__ import annotations

from functools import cache
from typing import Any

from ollama_engine.ml import ops
from ollama_engine.ml.ops_small_batch import small_batch_fastest, suits_small_batch
from ollama_engine.ml.tensor import Tensor
from ollama_engine.nn.module import Dim, Scope, Weight

REPACKED_ROWS = 16
"""Products of K-quants with fewer rows read the repacked copy: for more, ggml has a faster kernel for the original."""


SMALL_BATCH = {
    "avx512": {
        "q4_K": range(1, 33),
        "q6_K": range(1, 33),
        "q4_0": range(1, 513),
        "q8_0": range(1, 513),
        "mxfp4": range(1, 513),
        "f16": range(1, 7),
        "bf16": range(1, 5),
    },
    "avxvnni": {"q4_K": range(1, 513), "q6_K": range(2, 513), "q4_0": range(1, 513), "q8_0": range(1, 513)},
    "avx2": {
        "q4_K": range(1, 513),
        "q6_K": range(2, 65),
        "q4_0": range(1, 513),
        "q8_0": range(1, 513),
        "f16": range(1, 5),
        "bf16": range(1, 9),
    },
}
"""For which numbers of rows mul_mat_small_batch is faster than ggml's kernels, or as fast, by the instructions of the
CPU and the type of the weight; 512 is the most measured."""

SHORT = 2048
"""Rows of BF16 weights up to this length are served as SMALL_BATCH says. For longer ones, whose activations do not
stay in the first cache, ggml is ahead with AVX-512, which has an instruction for BF16."""


def served(instructions: str, dtype: str, length: int) -> range:
    """How many rows of activations mul_mat_small_batch is the faster one for, with weights whose rows have that
    length.
    """
    if (instructions, dtype) == ("avx512", "bf16") and length > SHORT:
        return range(1, 2)
    return SMALL_BATCH.get(instructions, {}).get(dtype, range(0))


@cache
def served_here(dtype: str, length: int) -> range:
    """`served` by this CPU."""
    return served(small_batch_fastest(dtype), dtype, length)


def choose_copy(weight: Tensor, rows: int) -> Tensor:
    """Whichever copy of a weight suits a product with that many rows; docs/performance.md has the figures."""
    if weight.repacked is not None and (rows < REPACKED_ROWS or not weight.dtype.endswith("_K")):
        return weight.repacked
    return weight


def product(weight: Tensor, x: Tensor) -> Tensor:
    """weight [n, m] times x [n, rows] -> f32 [m, rows], by whichever kernel and copy of the weight suit the rows."""
    rows = x.dim(1)
    if rows in served_here(weight.dtype, weight.dim(0)) and x.dim(2) == x.dim(3) == 1 and suits_small_batch(weight):
        return ops.mul_mat_small_batch(weight, x)
    return ops.mul_mat(choose_copy(weight, rows), x)


class Biased(Weight):
    """A weight with the bias `name.bias`: required if `bias` is true, otherwise taken where the file has one."""

    def __init__(
        self, name: str, *dims: Dim, alt: str | None = None, optional: bool = False, bias: bool = False
    ) -> None:
        super().__init__(name, *dims, alt=alt, optional=optional)
        self.needs_bias = bias
        self.bias: Tensor | None = None

    def bind(self, scope: Scope) -> Any:
        """A bound copy; see Weight.bind."""
        bound = super().bind(scope)
        name, dims = f"{self.name}.bias", self.dims[-1:]
        bound.bias = scope.require([name], dims) if self.needs_bias else scope.find(name, dims)
        return bound


class Linear(Biased):
    """x [in, n] -> [out, n]. Dims: in, out."""

    def __call__(self, x: Tensor) -> Tensor:
        y = product(self.tensor, x)
        return y if self.bias is None else y + self.bias


class Embedding(Weight):
    """Rows of a table [n_embd, rows] by token id: ids i32 [n] -> f32 [n_embd, n]."""

    def __call__(self, ids: Tensor) -> Tensor:
        return ops.get_rows(self.tensor, ids)


class RMSNorm(Weight):
    """x / rms(x) * weight (Zhang and Sennrich 2019)."""

    def __call__(self, x: Tensor, eps: float) -> Tensor:
        return ops.rms_norm(x, eps) * self.tensor


class LayerNorm(Biased):
    """(x - mean(x)) / deviation(x) * weight + bias (Ba et al. 2016)."""

    def __call__(self, x: Tensor, eps: float) -> Tensor:
        y = ops.layer_norm(x, eps) * self.tensor
        return y if self.bias is None else y + self.bias


Norm = RMSNorm | LayerNorm


class Factors(Weight):
    """A vector that divides rotary angles, absent in most files."""

    def __init__(self, name: str, *dims: Dim) -> None:
        super().__init__(name, *dims, optional=True)
