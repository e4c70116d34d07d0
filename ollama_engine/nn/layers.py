"""Layers with weights of their own: linear maps, embeddings, norms."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from ollama_engine.ml import ops
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.graph.types import block_of
from ollama_engine.ml.weights.kernel_choice import head_product, products
from ollama_engine.nn.module import Dim, Scope, Weight


class Biased(Weight):
    """A weight with the bias `name.bias`: required if `bias` is true, else used where the file has one."""

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
        return linears(x, self)[0]

    def first(self, n: int, x: Tensor) -> Tensor:
        """The first `n` values of the result: of the weight, only their rows are read."""
        assert isinstance(x.owner, Context), "x is a node of a graph"
        y = products([ops.view(self.tensor, (self.tensor.dim(0), n), ctx=x.owner)], x)[0]
        return y if self.bias is None else y + ops.view(self.bias, (n,), ctx=x.owner)


def linears(x: Tensor, *maps: Linear) -> list[Tensor]:
    """The result of each map of x, computed side by side."""
    results = products([each.tensor for each in maps], x)
    return [y if each.bias is None else y + each.bias for each, y in zip(maps, results, strict=True)]


class HeadLinear(Weight):
    """One matrix for each head, [in, out, heads]; x [in, heads, n] -> [out, heads, n].

    Quantized ones are multiplied as experts are, each token's heads by their own: ggml's product of three dimensions
    rounds otherwise from 8 tokens on.
    """

    def __call__(self, x: Tensor) -> Tensor:
        n, graph = x.dim(2), x.owner
        if block_of(self.tensor.dtype)[0] > 1 and isinstance(graph, Context):
            ids = graph.from_ints(np.tile(np.arange(x.dim(1), dtype=np.int32), (n, 1)))
            return head_product(self.tensor, x, ids)
        rows = ops.cont(ops.permute(x, 0, 2, 1, 3))
        if n == 1:
            rows = ops.repeat(rows, x.dim(0), 2, x.dim(1))  # ggml's kernel for a single row rounds otherwise
        y = ops.cont(ops.permute(ops.mul_mat(self.tensor, rows), 0, 2, 1, 3))
        return y if n > 1 else ops.view(y, (y.dim(0), y.dim(1), 1), (y.stride(1), y.stride(2)))


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


class Vector(Weight):
    """A tensor whose name has no `.weight` behind it."""

    def bind(self, scope: Scope) -> Any:
        """A bound copy. Raises ModelFormatError where the file has no such tensor."""
        bound = copy.copy(self)
        names = [name for name in (self.name, self.alt) if name]
        if self.optional:
            bound.weight = next((t for t in (scope.find(name, self.dims) for name in names) if t is not None), None)
        else:
            bound.weight = scope.require(names, self.dims)
        return bound


class Scalar(Vector):
    """A tensor of one number, which is read when the model is made: `value`, or `default` where the file has none."""

    value: float

    def __init__(self, name: str, default: float | None = None) -> None:
        super().__init__(name, 1)
        self.default = default

    def bind(self, scope: Scope) -> Any:
        """A bound copy. Raises ModelFormatError where the file has no such tensor, and there is no default."""
        if self.default is not None and scope.find(self.name, self.dims) is None:
            bound = copy.copy(self)
            bound.value = self.default
            return bound
        bound = super().bind(scope)
        bound.value = float(bound.tensor.numpy()[0])
        return bound


class Factors(Weight):
    """A vector that divides rotary angles (Llama 3.1, LongRoPE); most files have none."""

    def __init__(self, name: str, *dims: Dim) -> None:
        super().__init__(name, *dims, optional=True)
