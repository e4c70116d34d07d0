"""Mixture of experts (MoE): a router sends each token through a few of many feed-forward blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from ollama_engine.ml import ops
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.ops.operands import on_cpu_alone
from ollama_engine.ml.weights.kernel_choice import expert_product
from ollama_engine.nn.module import Module, Weight

NEVER = -1e30
"""Less than any number by which an expert is chosen."""
LEAST = 2.0**-14
"""The least sum of weights that they are divided by: all may be 0. As in llama.cpp, whose kernels for GPUs know this
form."""


class ExpertLinear(Weight):
    """One matrix for each expert, [in, out, experts]; x [in, used or 1, n], ids [used, n] -> [out, used, n]."""

    def __call__(self, x: Tensor, ids: Tensor) -> Tensor:
        return expert_product(self.tensor, x, ids)


class Mixture(Module):
    """A mixture of experts. A subclass declares its matrices, and says how its router chooses."""

    down: ExpertLinear
    following: Mixture | None = None
    """The next layer's, if its experts are read from the file when they are chosen."""

    def route(self, x: Tensor, o: Any) -> tuple[Tensor, Tensor]:
        """The experts of x [n_embd, n] and their weights, see `nn.route`."""
        raise NotImplementedError

    def choose(self, x: Tensor, o: Any) -> tuple[Tensor, Tensor]:
        """As `route`, and has experts read ahead that the next layer will probably choose.

        What a layer reads is much like what the next one reads, so the next router is asked about this x
        (Eliseev & Mazur 2023, arXiv:2312.17238).
        """
        ids, weights = self.route(x, o)
        if self.following is not None:
            guess = ops.guess_experts(self.following.down.tensor, self.following.route(x, o)[0])
            assert isinstance(guess.owner, Context), "routers are in a graph"
            guess.owner.expand(guess)
        return ids, weights


def read_ahead(model: Module) -> None:
    """Have each mixture of a model know the next one, where experts are read from the file when they are chosen."""
    mixtures = list(_mixtures(model))
    for mixture, following in pairwise(mixtures):
        if following.down.tensor.cached is not None:
            mixture.following = following


def _mixtures(module: Module) -> Iterator[Mixture]:
    for value in vars(module).values():
        for part in value if isinstance(value, list) else (value,):
            if isinstance(part, Mixture):
                yield part
            elif isinstance(part, Module):
                yield from _mixtures(part)


def route(logits: Tensor, used: int, *, normalize: bool) -> tuple[Tensor, Tensor]:
    """The `used` most probable experts of each token: ids i32 [used, n] and weights f32 [1, used, n].

    Probabilities are a softmax over all experts; `normalize` divides the chosen ones by their sum (Jiang et al. 2024).
    """
    probabilities = ops.softmax(logits)
    ids = ops.top_k(probabilities, used)
    weights = _chosen(probabilities, ids)
    return _together(ids, _normalized(weights) if normalize else weights)


def _chosen(scores: Tensor, ids: Tensor) -> Tensor:
    """The scores [experts, n] of the experts ids [used, n] -> [1, used, n]."""
    return ops.get_rows(ops.reshape(scores, 1, scores.dim(0), scores.dim(1)), ids)


def _normalized(weights: Tensor) -> Tensor:
    """Weights [1, used, n] of which those of each token add up to 1."""
    used, n = weights.dim(1), weights.dim(2)
    flat = ops.reshape(weights, used, n)
    return ops.reshape(flat / ops.clamp(ops.sum_rows(flat), LEAST, math.inf), 1, used, n)


def _together(ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Have the weights computed right behind the ids: GPUs then compute all of the routing in one kernel."""
    graph = weights.owner
    if isinstance(graph, Context):
        graph.expand(weights)
    return ids, weights


def route_corrected(
    logits: Tensor, bias: Tensor, used: int, *, normalize: bool, scale: float = 1.0, softmax: bool = False
) -> tuple[Tensor, Tensor]:
    """As `route`, with sigmoids: those plus `bias` [experts] choose, those alone are weights (DeepSeek-V3).

    `softmax`: the same with probabilities (ERNIE 4.5).
    """
    scores = ops.softmax(logits) if softmax else ops.unary(logits, "sigmoid")
    return route_scored(scores, scores + bias, used, normalize=normalize, scale=scale)


def route_scored(
    scores: Tensor, choosing: Tensor, used: int, *, normalize: bool, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """As `route`, by probabilities: `choosing` [experts, n] choose, `scores` [experts, n] times `scale` are weights."""
    ids = ops.top_k(choosing, used)
    weights = _chosen(scores, ids)
    weights = _normalized(weights) if normalize else weights
    return _together(ids, weights if scale == 1.0 else ops.scale(weights, scale))


def of_best_groups(choosing: Tensor, groups: int, used: int, best: int) -> Tensor:
    """Numbers [experts, n] by which experts are chosen, far below 0 outside of each token's `used` best groups.

    Of the `groups`, which are equally many experts in turn, those are best whose `best` largest numbers have the
    largest sum (DeepSeek-V2, -V3).
    """
    experts, n = choosing.dim(0), choosing.dim(1)
    each = experts // groups
    best_ids = ops.cont(ops.top_k(ops.reshape(choosing, each, groups * n), best))
    largest = ops.get_rows(ops.reshape(choosing, 1, each, groups * n), best_ids)
    sums = ops.sum_rows(ops.reshape(largest, best, groups * n))
    ids = ops.cont(ops.top_k(ops.reshape(sums, groups, n), used))
    kept = ops.get_rows(ops.reshape(choosing, each, groups, n), ids)
    nothing = ops.scale(ops.reshape(choosing, each, groups, n), 0.0, NEVER)
    return ops.reshape(ops.set_rows(nothing, kept, ids), experts, n)


def route_chosen(logits: Tensor, used: int) -> tuple[Tensor, Tensor]:
    """As `route`, but the weights are a softmax over the logits of the chosen experts alone (gpt-oss)."""
    ids = ops.top_k(logits, used)
    chosen = ops.reshape(_chosen(logits, ids), used, logits.dim(1))
    return _together(ids, ops.reshape(ops.softmax(chosen), 1, used, logits.dim(1)))


def route_sigmoid(logits: Tensor, used: int, *, normalize: bool = False) -> tuple[Tensor, Tensor]:
    """As `route`, by the logits themselves, and each weight is the sigmoid of its own logit (Llama 4)."""
    ids = ops.top_k(logits, used)
    weights = ops.unary(_chosen(logits, ids), "sigmoid")
    return ids, _normalized(weights) if normalize else weights


def weighted_inputs(x: Tensor, weights: Tensor) -> Tensor:
    """x [n_embd, n] times the weights [1, used, n] of its experts -> [n_embd, used, n], what each of them reads."""
    n_embd, n, used = x.dim(0), x.dim(1), weights.dim(1)
    if used == 1:
        return ops.reshape(scaled_rows(x, weights), n_embd, 1, n)
    return ops.repeat(ops.reshape(x, n_embd, 1, n), n_embd, used, n) * weights


def scaled_rows(x: Tensor, factors: Tensor) -> Tensor:
    """x [m, n], each row times its own number of [1, 1, n] -> [m, n]."""
    # As a sum over one expert: ggml's product with one number per row is slow.
    return sum_experts(ops.reshape(x, x.dim(0), 1, x.dim(1)), factors)


def sum_experts(outputs: Tensor, weights: Tensor) -> Tensor:
    """Each token's outputs [n_embd, used, n] of its experts, weighted by [1, used, n] -> [n_embd, n]."""
    if on_cpu_alone(outputs):
        return ops.weighted_sum(outputs, weights)
    return sum_slots(outputs * weights)


def sum_slots(outputs: Tensor) -> Tensor:
    """The sum over `used` of [n_embd, used, n] -> [n_embd, n], by operations that every device has."""
    n_embd, used, n = outputs.dim(0), outputs.dim(1), outputs.dim(2)
    if used == 1:
        return ops.reshape(outputs, n_embd, n)

    def slot(expert: int) -> Tensor:
        return ops.view(outputs, (n_embd, n), (outputs.stride(2),), expert * outputs.stride(1))

    total = slot(0) + slot(1)
    for expert in range(2, used):
        total = total + slot(expert)
    return total
