"""Recurrent layers: what they keep of a sequence's past is a state of fixed size, which lies in the cache."""

from __future__ import annotations

from typing import cast

from ollama_engine.kvcache.base import LayerView, RecurrentView, StateView
from ollama_engine.ml import ops
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.nn.layers import Biased


class CausalConv(Biased):
    """Causal depthwise convolution: x [channels, n] -> [channels, n]. Dims: taps, channels.

    `part` of the layer's state, of shape (channels, taps - 1), holds the latest inputs.
    """

    def __call__(self, x: Tensor, cache: LayerView, part: int = 0) -> Tensor:
        states = _states(cache)
        segments = states.segments
        y = ops.causal_conv(x, self.tensor, segments.rows, segments.bounds, segments.slots, states.part(part))
        states.written(y)
        return y if self.bias is None else y + self.bias


def _states(cache: LayerView) -> StateView:
    """The states of the current layer."""
    return cast("RecurrentView", cache).states
