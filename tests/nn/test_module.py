"""Weights are found by the names and shapes that a module declares, and errors say what was looked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.graph.tensor import Tensor


class FakeTensor:
    """A shape; binding looks at nothing else."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def dim(self, axis: int) -> int:
        return self.shape[axis] if axis < len(self.shape) else 1


def scope(weights: dict[str, tuple[int, ...]], **sizes: int) -> nn.Scope:
    made = {name: cast(Tensor, FakeTensor(*shape)) for name, shape in weights.items()}
    return nn.Scope(made, SimpleNamespace(**{"n_embd": 4, "n_ff": 6, "n_layer": 2, **sizes}))


class MLP(nn.Module):
    up = nn.Linear("ffn_up", "n_embd", "n_ff")
    gate = nn.Linear("ffn_gate", "n_embd", "n_ff", optional=True)


class Layer(nn.Module):
    norm = nn.RMSNorm("norm", "n_embd")
    mlp = nn.Part(MLP)


class Root(nn.Module):
    table = nn.Embedding("table", "n_embd", 10)
    layers = nn.Blocks(Layer, "n_layer")
    head = nn.Linear("head", "n_embd", 10, alt="table")
    extra = nn.Part(MLP, "extra")


FILE: dict[str, tuple[int, ...]] = {
    "table.weight": (4, 10),
    **{f"blk.{i}.{name}": shape for i in (0, 1) for name, shape in
       {"norm.weight": (4,), "ffn_up.weight": (4, 6), "ffn_up.bias": (6,)}.items()},
    "extra.ffn_up.weight": (4, 6),
    "extra.ffn_gate.weight": (4, 6),
    "unused.weight": (1,),
}  # fmt: skip


def test_names_follow_the_structure() -> None:
    root_scope = scope(FILE)
    root = Root(root_scope)
    assert root.layers[1].mlp.up.tensor is root_scope.weights["blk.1.ffn_up.weight"]
    assert root.layers[1].mlp.up.bias is root_scope.weights["blk.1.ffn_up.bias"]
    assert root.extra.up.bias is None
    assert root.head.tensor is root.table.tensor
    assert [bool(layer.mlp.gate) for layer in root.layers] == [False, False]
    assert root.extra.gate
    assert set(root_scope.weights) - root_scope.used == {"unused.weight"}


def test_the_weight_itself_comes_before_the_alternative() -> None:
    found = scope({**FILE, "head.weight": (4, 10)})
    assert Root(found).head.tensor is found.weights["head.weight"]


def test_instances_share_declarations_not_weights() -> None:
    first, second = Root(scope(FILE)), Root(scope(FILE))
    assert first.layers[0].norm.tensor is not second.layers[0].norm.tensor
    assert first.layers[0].norm.tensor is not first.layers[1].norm.tensor
    assert isinstance(Root.layers, nn.Blocks)
    assert not Root.table


def test_declarations_are_inherited_and_may_be_replaced() -> None:
    class Wide(MLP):
        up = nn.Linear("ffn_up_wide", "n_embd", "n_ff")
        down = nn.Linear("ffn_down", "n_ff", "n_embd")
        gate = None  # type: ignore[assignment]

    wide_scope = scope({"ffn_up_wide.weight": (4, 6), "ffn_down.weight": (6, 4)})
    wide = Wide(wide_scope)
    assert wide.gate is None
    assert wide.up.tensor is wide_scope.weights["ffn_up_wide.weight"]
    assert wide_scope.used == set(wide_scope.weights)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"table.weight": None},
            r"no tensor table\.weight of shape \[4, 10\]; unused tensors there: blk\.0\.ffn_up\.bias, ",
        ),
        ({"blk.1.norm.weight": None}, r"no tensor blk\.1\.norm\.weight of shape \[4\]"),
        ({"blk.1.norm.weight": None}, r"unused tensors there: blk\.1\.ffn_up\.bias, blk\.1\.ffn_up\.weight$"),
        ({"extra.ffn_up.weight": None}, r"no tensor extra\.ffn_up\.weight of shape \[4, 6\]"),
        ({"blk.0.norm.weight": (5,)}, r"blk\.0\.norm\.weight has shape \[5\]; the metadata ask for \[4\] \(n_embd\)"),
        ({"blk.0.ffn_up.weight": (6, 4)}, r"has shape \[6, 4\]; .* \[4, 6\] \(n_embd, n_ff\)"),
        ({"blk.0.ffn_up.weight": (4, 6, 2)}, r"has shape \[4, 6, 2\]"),
        ({"blk.0.ffn_up.weight": (4,)}, r"has shape \[4, 1\]"),
        ({"blk.0.ffn_up.bias": (4,)}, r"blk\.0\.ffn_up\.bias has shape \[4\]; .* \[6\]"),
        ({"extra.ffn_gate.weight": (4, 7)}, r"extra\.ffn_gate\.weight has shape"),
        ({"head.weight": (4, 11)}, r"head\.weight has shape \[4, 11\]; .* \[4, 10\] \(n_embd, 10\)"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, tuple[int, ...] | None], message: str) -> None:
    weights: dict[str, Any] = {**FILE, **change}
    with pytest.raises(ModelFormatError, match=message):
        Root(scope({name: shape for name, shape in weights.items() if shape is not None}))


def test_a_missing_alternative_is_named_too() -> None:
    class Head(nn.Module):
        head = nn.Linear("head", "n_embd", 10, alt="table")

    with pytest.raises(ModelFormatError, match=r"no tensor head\.weight or table\.weight of shape \[4, 10\]$"):
        Head(scope({}))


def test_a_weight_that_is_not_there_cannot_be_used() -> None:
    with pytest.raises(ModelFormatError, match="'ffn_gate' is not bound"):
        _ = Root(scope(FILE)).layers[0].mlp.gate.tensor


class Normed(nn.Module):
    norm = nn.LayerNorm("norm", "n_embd", bias=True)
    up = nn.Linear("ffn_up", "n_embd", "n_ff", bias=True)


def test_a_required_bias_is_asked_for_by_name() -> None:
    weights = {"norm.weight": (4,), "norm.bias": (4,), "ffn_up.weight": (4, 6), "ffn_up.bias": (6,)}
    found = Normed(scope(weights))
    assert found.norm.bias is not None
    assert found.up.bias is not None
    for name, shape in (("norm.bias", 4), ("ffn_up.bias", 6)):
        with pytest.raises(ModelFormatError, match=rf"no tensor {name} of shape \[{shape}\]"):
            Normed(scope({n: dims for n, dims in weights.items() if n != name}))
