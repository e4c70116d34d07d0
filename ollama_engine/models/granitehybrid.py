"""Granite 4, hybrid: `general.architecture` = granitehybrid.

Most blocks have a Mamba-2 layer in place of attention, which has no positions; in larger models, experts stand beside a
feed-forward part that all tokens share. Embeddings, residuals, scores and logits are scaled. Source: IBM 2025.
"""

from __future__ import annotations

from dataclasses import replace

from ollama_engine import nn
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.granite import Granite, ScaledLayer, ScaledSparseLayer, with_scales
from ollama_engine.models.options import extended, read_common
from ollama_engine.models.state_space import StateSpace, StateSpaceOptions, read_state_space


class StateSpaceLayer(ScaledLayer):
    attention = nn.Part(StateSpace)


class SparseStateSpaceLayer(ScaledSparseLayer):
    attention = nn.Part(StateSpace)


def make_layer(scope: nn.Scope) -> ScaledLayer:
    """One block."""
    attends = scope.options.attends[scope.block]
    if scope.options.n_expert:
        return (ScaledSparseLayer if attends else SparseStateSpaceLayer)(scope)
    return (ScaledLayer if attends else StateSpaceLayer)(scope)


class GraniteHybrid(Granite):
    options: StateSpaceOptions
    architecture = "granitehybrid"

    layers = nn.Blocks(make_layer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> StateSpaceOptions:
        o = extended(read_common(metadata, n_vocab, rope_mode="norm"), StateSpaceOptions, **read_state_space(metadata))
        return with_scales(metadata, replace(o, attends=o.attends or (True,) * o.n_layer))

    def layer_state(self, layer: int) -> tuple[tuple[int, ...], ...]:
        return () if self.options.attends[layer] else self.options.state
