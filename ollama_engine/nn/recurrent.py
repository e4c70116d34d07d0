"""Recurrent layers: what they keep of a sequence's past is a state of fixed size, which lies in the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from ollama_engine.kvcache.base import LayerView, RecurrentView
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
        return _stepped(
            cache, part, lambda *s: ops.causal_conv(x, self.tensor, *s, bias=self.bias, silu=silu, gated=gated)
        )


def delta_net(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, cache: LayerView, part: int = 1, *, grouped: bool = False,
    eps: float | None = None,
) -> Tensor:  # fmt: skip
    """Gated delta rule, see `ops.gated_delta_net`: q, k [dk, key_heads, n], v [dv, heads, n], g, beta [heads, n].

    -> [dv, heads, n]. `part` of the layer's state has shape (dv, dk, heads).
    """
    return _stepped(cache, part, lambda *s: ops.gated_delta_net(q, k, v, g, beta, *s, grouped=grouped, eps=eps))


def ssm_scan(
    x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, cache: LayerView, part: int = 1
) -> Tensor:
    """State-space scan of Mamba-2, see `ops.ssm_scan`: x [dim, heads, n], dt [heads, n], b, c [d_state, groups, n].

    -> [dim, heads, n]. `part` of the layer's state has `ssm_state_size` numbers.
    """
    return _stepped(cache, part, lambda *s: ops.ssm_scan(x, dt, a, b, c, *s, d=d))


def _stepped(cache: LayerView, part: int, operation: Callable[..., Tensor]) -> Tensor:
    """`operation` of the batch's segments and a part of the current layer's states, which it writes."""
    states = cast("RecurrentView", cache).states
    y = operation(*states.segments.tensors, states.part(part))
    states.written(y)
    return y
