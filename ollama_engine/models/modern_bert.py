"""ModernBERT: `general.architecture` = modern-bert.

Norms without biases before attention and feed-forward, but none before the first attention; rotary positions; every
third layer sees the whole text, the others a window. Source: Warner et al. 2024.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ollama_engine import nn
from ollama_engine.errors import UnsupportedModelError
from ollama_engine.ml.metadata import Metadata
from ollama_engine.ml.tensor import Tensor
from ollama_engine.models.decoder import Step
from ollama_engine.models.encoder import Encoder, EncoderOptions, read_encoder
from ollama_engine.models.fused import FusedAttention, FusedMLP
from ollama_engine.models.options import read_local_ropes

PERIOD = 3
"""The first of so many layers sees all, where the file does not say."""


class GeGLU(FusedMLP):
    """Gated by the exact form of GELU."""

    activation = "gelu_erf"


MLPS = {"gelu": GeGLU, "silu": FusedMLP}
"""By `hidden_activation`."""


@dataclass(frozen=True, kw_only=True)
class Options(EncoderOptions):
    """What only ModernBERT has."""

    mlp: type[FusedMLP]


class Layer(nn.Module):
    """One block: attention, then feed-forward, each behind a norm and beside a residual."""

    attn_norm = nn.LayerNorm("attn_norm", "n_embd", optional=True)
    attention = nn.Part(FusedAttention)
    ffn_norm = nn.LayerNorm("ffn_norm", "n_embd")

    def __init__(self, scope: nn.Scope) -> None:
        super().__init__(scope)
        if scope.prefix != "blk.0.":
            scope.require(["attn_norm.weight"], ("n_embd",))
        self.mlp: FusedMLP = scope.options.mlp(scope)

    def forward(self, x: Tensor, step: Step, o: Options) -> Tensor:
        """x [n_embd, n] -> [n_embd, n], or fewer rows in the last layer."""
        a = self.attention.forward(self.attn_norm(x, o.norm_eps) if self.attn_norm else x, step, o)
        x = step.wanted(a) + step.wanted(x)
        return self.mlp.forward(self.ffn_norm(x, o.norm_eps)) + x


class ModernBert(Encoder):
    """The whole model."""

    architecture = "modern-bert"
    head_activation = "gelu_erf"
    head_pooling = "mean"  # as llama.cpp takes it

    layers = nn.Blocks(Layer, "n_layer")
    output_norm = nn.LayerNorm("output_norm", "n_embd")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        """See Encoder."""
        activation = metadata.str("hidden_activation", "gelu")
        if activation not in MLPS:
            raise UnsupportedModelError(f"hidden_activation is {activation!r}; supported: {', '.join(MLPS)}")
        fields = read_encoder(metadata, n_vocab)
        windows = _windows(metadata, fields["n_layer"])
        ropes = read_local_ropes(metadata, fields["rope"], windows, fields["rope"].base)
        return Options(**fields | {"windows": windows, "ropes": ropes, "mlp": MLPS[activation]})

    def finish(self, x: Tensor) -> Tensor:
        """See Encoder."""
        return self.output_norm(x, self.options.norm_eps)


def _windows(metadata: Metadata, n_layer: int) -> tuple[int | None, ...]:
    """`attention.sliding_window_pattern` is a list of the local layers, or says that the first of so many sees all."""
    window = min(metadata.u32("attention.sliding_window", 0), 2**31 - 1)
    name = "attention.sliding_window_pattern"
    if isinstance(metadata.values.get(metadata.key(name)), (np.ndarray, list)):
        local = metadata.bools(name, n_layer)
    else:
        period = metadata.u32(name, PERIOD)
        local = [period == 0 or i % period != 0 for i in range(n_layer)]
    return tuple(window if window and is_local else None for is_local in local)
