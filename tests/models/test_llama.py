"""Decisions of llama.py beyond its reference: tensors under names that an old converter swapped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.llama import SparseMLP

UP, DOWN = (4, 6, 3), (6, 4, 3)


class FakeTensor:
    """A shape; binding looks at nothing else."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def dim(self, axis: int) -> int:
        return self.shape[axis] if axis < len(self.shape) else 1


def experts(**shapes: tuple[int, ...]) -> nn.Scope:
    named = {"ffn_gate_inp": (4, 3), "ffn_gate_exps": UP, **shapes}
    weights = {f"blk.0.{name}.weight": cast(Tensor, FakeTensor(*shape)) for name, shape in named.items()}
    return nn.Scope(weights, SimpleNamespace(n_embd=4, n_ff=6, n_expert=3), "blk.0.")


@pytest.mark.parametrize(("up", "down"), [("up", "down"), ("down", "up")], ids=["sound", "swapped"])
def test_up_and_down_of_experts_are_told_by_their_shapes(up: str, down: str) -> None:
    scope = experts(**{f"ffn_{up}_exps": UP, f"ffn_{down}_exps": DOWN})
    mlp = SparseMLP(scope)
    assert mlp.up.tensor is scope.weights[f"blk.0.ffn_{up}_exps.weight"]
    assert mlp.down.tensor is scope.weights[f"blk.0.ffn_{down}_exps.weight"]
    assert scope.used == set(scope.weights)


def test_experts_that_fit_neither_way_are_named_as_the_file_names_them() -> None:
    with pytest.raises(ModelFormatError, match=r"blk\.0\.ffn_up_exps\.weight has shape \[6, 4, 3\]"):
        SparseMLP(experts(ffn_up_exps=DOWN, ffn_down_exps=DOWN))
    with pytest.raises(ModelFormatError, match=r"no tensor blk\.0\.ffn_down_exps\.weight"):
        SparseMLP(experts(ffn_up_exps=UP))
