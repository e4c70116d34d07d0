"""Falcon-H1: `general.architecture` = falcon-h1.

Each block has attention and a Mamba-2 layer side by side, which read the same norm. Source: TII 2025
(arXiv:2507.22448). Its multipliers are part of the weights in GGUF files.
"""

from __future__ import annotations

from ollama_engine import nn
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep, SelfAttention
from ollama_engine.models.decoder import Decoder
from ollama_engine.models.options import extended, read_common
from ollama_engine.models.state_space import StateSpace, StateSpaceOptions, read_state_space


class PlainStateSpace(StateSpace):
    """Most models have no norm behind the gate."""

    norm = nn.RMSNorm("ssm_norm", "group_size", "n_groups", optional=True)


class ParallelLayer(nn.Module):
    attn_norm = nn.RMSNorm("attn_norm", "n_embd")
    attention = nn.Part(SelfAttention)
    state_space = nn.Part(PlainStateSpace)
    ffn_norm = nn.Vector("ffn_norm", "n_embd", alt="ffn_norm.weight")
    """llama.cpp's converter leaves `.weight` away."""
    mlp = nn.Part(nn.GatedMLP)

    def forward(self, x: Tensor, step: LayerStep, o: StateSpaceOptions) -> Tensor:
        """x [n_embd, n] -> [n_embd, n], or fewer rows in the last layer."""
        h = self.attn_norm(x, o.norm_eps)
        mixed = self.attention.forward(h, step, o) + self.state_space.forward(h, step, o)
        x = step.output_rows(mixed) + step.output_rows(x)
        return self.mlp.forward(ops.rms_norm(x, o.norm_eps) * self.ffn_norm.tensor) + x


class FalconH1(Decoder):
    options: StateSpaceOptions
    architecture = "falcon-h1"

    layers = nn.Blocks(ParallelLayer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> StateSpaceOptions:
        return extended(read_common(metadata, n_vocab), StateSpaceOptions, **read_state_space(metadata))

    def layer_state(self, layer: int) -> tuple[tuple[int, ...], ...]:
        return self.options.state
