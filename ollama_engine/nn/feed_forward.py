"""Feed-forward blocks that models share, with the weights' usual GGUF names."""

from __future__ import annotations

import math

from ollama_engine.ml import ops
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.ops.operands import lies_on_cpu, on_cpu_alone
from ollama_engine.nn.layers import Linear, linears
from ollama_engine.nn.module import Module


class GatedMLP(Module):
    """SwiGLU: down(silu(gate x) * up x) (Shazeer 2020)."""

    gate = Linear("ffn_gate", "n_embd", "n_ff")
    up = Linear("ffn_up", "n_embd", "n_ff")
    down = Linear("ffn_down", "n_ff", "n_embd")

    def forward(self, x: Tensor) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        gate, up = linears(x, self.gate, self.up)
        return self.down(ops.glu(gate, up))


class GeluMLP(GatedMLP):
    """GeGLU: down(gelu(gate x) * up x)."""

    def forward(self, x: Tensor) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        gate, up = linears(x, self.gate, self.up)
        return self.down(gelu(gate) * up)


class PlainMLP(Module):
    """down(gelu(up x)), as in GPT-2."""

    up = Linear("ffn_up", "n_embd", "n_ff")
    down = Linear("ffn_down", "n_ff", "n_embd")

    def forward(self, x: Tensor) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        return self.down(gelu(self.up(x)))


class SquaredMLP(PlainMLP):
    """down(relu(up x)^2) (So et al. 2021)."""

    def forward(self, x: Tensor) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        return self.down(relu_squared(self.up(x)))


class ErfMLP(PlainMLP):
    """down(gelu(up x)) with the exact form of GELU and biases, as in BERT."""

    up = Linear("ffn_up", "n_embd", "n_ff", bias=True)
    down = Linear("ffn_down", "n_ff", "n_embd", bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        return self.down(gelu_erf(self.up(x), self.up.tensor))


def relu_squared(x: Tensor) -> Tensor:
    """relu(x)^2."""
    return ops.sqr(ops.unary(x, "relu"))


def gelu(x: Tensor) -> Tensor:
    """The tanh form of GELU (Hendrycks and Gimpel 2016): x * sigmoid(sqrt(8 / pi) * (x + 0.044715 x^3)).

    Not ggml's own operation, which looks values up in a 16-bit table on the CPU. With the table, logits are off by 1e-3
    of their standard deviation, and depend on how a prompt is split into batches. On other devices several operations.
    """
    if on_cpu_alone(x) and x.contiguous:
        return ops.gelu_tanh(x)
    slope = math.sqrt(8 / math.pi)
    inner = x * ops.scale(ops.sqr(x), 0.044715 * slope, slope)
    return x * ops.unary(inner, "sigmoid")


def gelu_erf(x: Tensor, weight: Tensor) -> Tensor:
    """The exact form of GELU (Hendrycks and Gimpel 2016), on the device of `weight`, whose product x is."""
    return ops.gelu_exact(x) if lies_on_cpu(weight) else ops.unary(x, "gelu_erf")


def quick_gelu(x: Tensor) -> Tensor:
    """x * sigmoid(1.702 x) (Hendrycks and Gimpel 2016), by several operations for the same reason as `gelu`."""
    return x * ops.unary(ops.scale(x, 1.702), "sigmoid")
