"""Feed-forward blocks that models share, with the weights' usual GGUF names."""

from __future__ import annotations

from typing import ClassVar

from ollama_engine.ml import ops
from ollama_engine.ml.tensor import Tensor
from ollama_engine.nn.layers import Linear
from ollama_engine.nn.module import Module


class GatedMLP(Module):
    """down(activation(gate x) * up x) (Shazeer 2020): SwiGLU, or GeGLU where `activation` is gelu."""

    activation: ClassVar[str] = "silu"

    gate = Linear("ffn_gate", "n_embd", "n_ff")
    up = Linear("ffn_up", "n_embd", "n_ff")
    down = Linear("ffn_down", "n_ff", "n_embd")

    def forward(self, x: Tensor) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        return self.down(ops.glu(self.gate(x), self.up(x), self.activation))


class PlainMLP(Module):
    """down(gelu(up x)), as in GPT-2. `activation` is one of ops.unary."""

    activation: ClassVar[str] = "gelu"

    up = Linear("ffn_up", "n_embd", "n_ff")
    down = Linear("ffn_down", "n_ff", "n_embd")

    def forward(self, x: Tensor) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        return self.down(ops.unary(self.up(x), self.activation))
