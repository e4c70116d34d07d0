"""Recurrent layers: what they keep of a sequence's past is a state of fixed size, which lies in the cache."""

from __future__ import annotations

from typing import cast

from ollama_engine.kvcache.base import LayerView, RecurrentView, StateView
from ollama_engine.ml import ops
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.nn.layers import Biased


class CausalConv(Biased):
    """Causal depthwise convolution, see `ops.causal_conv`: x [channels, n] -> [channels, n]. Dims: taps, channels.

    `part` of the layer's state, of shape (channels, taps - 1), holds the latest inputs. With `gated`, x [3 * channels,
    n] has two gates before the inputs.
    """

    def __call__(
        self, x: Tensor, cache: LayerView, part: int = 0, *, silu: bool = False, gated: bool = False
    ) -> Tensor:
        states = _states(cache)
        rows, bounds, slots = states.segments.tensors
        y = ops.causal_conv(
            x, self.tensor, rows, bounds, slots, states.part(part), bias=self.bias, silu=silu, gated=gated
        )
        states.written(y)
        return y


def delta_net(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, cache: LayerView, part: int = 1, *, grouped: bool = False
) -> Tensor:
    """Gated delta rule, see `ops.gated_delta_net`: q, k [dk, key_heads, n], v [dv, heads, n], g, beta [heads, n].

    -> [dv, heads, n]. `part` of the layer's state has shape (dv, dk, heads).
    """
    states = _states(cache)
    rows, bounds, slots = states.segments.tensors
    y = ops.gated_delta_net(q, k, v, g, beta, rows, bounds, slots, states.part(part), grouped=grouped)
    states.written(y)
    return y


def ssm_scan(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, cache: LayerView, part: int = 1
) -> Tensor:
    """State-space scan of Mamba-2, see `ops.ssm_scan`: x [dim, heads, n], dt [heads, n], b, c [d_state, groups, n].

    -> [dim, heads, n]. `part` of the layer's state has shape (dim, d_state, heads).
    """
    states = _states(cache)
    rows, bounds, slots = states.segments.tensors
    y = ops.ssm_scan(x, dt, a, b, c, rows, bounds, slots, states.part(part), d=d)
    states.written(y)
    return y


def _states(cache: LayerView) -> StateView:
    """The states of the current layer."""
    return cast("RecurrentView", cache).states
