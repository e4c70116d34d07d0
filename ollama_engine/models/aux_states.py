"""Auxiliary states: what some blocks of a model give, beside the hidden states that its logits are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ollama_engine.errors import ModelFormatError
from ollama_engine.kvcache import LayerView
from ollama_engine.ml import ops
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.base import Model, ModelInputs
from ollama_engine.models.decoder import Decoder

__all__ = ["AuxStatesModel", "part_of_rows"]


class AuxStatesModel:
    """A model that gives what it has behind so many `blocks`, beside logits. Implements `MakesLogits`."""

    def __init__(self, model: Model, blocks: Sequence[int]) -> None:
        """Raises ModelFormatError for a model that gives none of its blocks, and for more blocks than it has."""
        if not isinstance(model, Decoder) or not model.gives_aux_states:
            raise ModelFormatError(f"it reads states of a model's blocks, which {model.architecture} does not give")
        n = model.options.n_layer
        if not blocks or not all(1 <= block <= n for block in blocks):
            raise ModelFormatError(f"it reads states behind blocks {list(blocks)}, and the model has {n}")
        self._model = model
        self._blocks = tuple(blocks)
        self._last: Tensor | None = None
        """The hidden states of the graph that is being built."""

    @property
    def n_embd(self) -> int:
        """Numbers of the auxiliary states of one token."""
        return len(self._blocks) * self._model.n_embd

    def hidden(self, inputs: ModelInputs, cache: LayerView) -> Tensor:
        """Build the graph: f32 [n_embd, n], auxiliary states of all rows.

        Those of output rows alone where one of them is behind a block that computes no others, such as the last one.
        """
        kept: dict[int, Tensor] = {}
        self._last = self._model.hidden(replace(inputs, aux_states=kept), cache)
        states = [kept[block] for block in self._blocks]
        fewest = min(each.dim(1) for each in states)
        first, *others = (
            each if each.dim(1) == fewest or inputs.outputs is None else ops.get_rows(each, inputs.outputs)
            for each in states
        )
        for each in others:
            first = ops.concat(first, each, 0)
        return first

    def logits(self, x: Tensor) -> Tensor:
        """Build the rest of the graph behind `hidden`, which gave `x`: f32 [n_vocab, n_outputs]."""
        assert self._last is not None, "hidden comes first"
        last, self._last = self._last, None
        return self._model.logits(last)


def part_of_rows(x: Tensor, begin: int, n: int) -> Tensor:
    """The numbers from `begin` on of each row: x [m, rows] -> [n, rows]."""
    return ops.cont(ops.view(x, (n, x.dim(1)), (x.stride(1),), begin * x.stride(0)))
