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
    """A model whose hidden states stand behind what it has behind so many `blocks`. Implements `MakesLogits`."""

    def __init__(self, model: Model, blocks: Sequence[int]) -> None:
        """Raises ModelFormatError for a model that gives none of its blocks, and for more blocks than it has."""
        if not isinstance(model, Decoder) or not model.gives_aux_states:
            raise ModelFormatError(f"it reads states of a model's blocks, which {model.architecture} does not give")
        n = model.options.n_layer
        if not blocks or not all(1 <= block <= n for block in blocks):
            raise ModelFormatError(f"it reads states behind blocks {list(blocks)}, and the model has {n}")
        self._model = model
        self._blocks = tuple(blocks)
        self.n_aux = len(blocks) * model.n_embd
        """Numbers of the auxiliary states of a token, which come first in a row."""

    @property
    def n_embd(self) -> int:
        """Length of a row."""
        return self.n_aux + self._model.n_embd

    def hidden(self, inputs: ModelInputs, cache: LayerView) -> Tensor:
        """Build the graph: auxiliary states, and behind them hidden states, f32 [n_embd, n_outputs]."""
        kept: dict[int, Tensor] = {}
        rows = self._model.hidden(replace(inputs, aux_states=kept), cache)
        for block in reversed(self._blocks):
            states = kept[block]
            if inputs.outputs is not None and states.dim(1) != inputs.outputs.dim(0):
                states = ops.get_rows(states, inputs.outputs)
            rows = ops.concat(states, rows, 0)
        return rows

    def logits(self, x: Tensor) -> Tensor:
        """What `hidden` gives -> f32 [n_vocab, n]."""
        return self._model.logits(part_of_rows(x, self.n_aux, self._model.n_embd))


def part_of_rows(x: Tensor, begin: int, n: int) -> Tensor:
    """The numbers from `begin` on of each row: x [m, rows] -> [n, rows]."""
    return ops.cont(ops.view(x, (n, x.dim(1)), (x.stride(1),), begin * x.stride(0)))
