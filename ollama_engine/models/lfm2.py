"""LFM2: `general.architecture` = lfm2.

Most blocks have a short convolution with two gates in place of attention; the others have normalized heads as Qwen3.
Source: Amini et al. 2025 (LFM2 technical report, arXiv:2511.23404).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep
from ollama_engine.models.decoder import Decoder, PreNormLayer
from ollama_engine.models.fused import columns
from ollama_engine.models.options import Options, extended, read_common
from ollama_engine.models.qwen3 import NormedAttention

MAX_TAPS = 16
"""Most taps that `ops.causal_conv` takes."""


@dataclass(frozen=True, kw_only=True)
class Lfm2Options(Options):
    """Options of LFM2."""

    n_taps: int
    """Taps of the short convolution."""

    @property
    def n_embd_thrice(self) -> int:
        """Rows of the projection into a convolution: two gates and its input."""
        return 3 * self.n_embd


class ShortConv(nn.Module):
    """The input times a gate, convolved, times another gate."""

    in_proj = nn.Linear("shortconv.in_proj", "n_embd", "n_embd_thrice")
    conv = nn.CausalConv("shortconv.conv", "n_taps", "n_embd")
    out_proj = nn.Linear("shortconv.out_proj", "n_embd", "n_embd")

    def forward(self, x: Tensor, step: LayerStep, o: Lfm2Options) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        before, after, inner = columns(self.in_proj(x), o.n_embd, o.n_embd, o.n_embd)
        return self.out_proj(after * self.conv(before * inner, step.cache))


class ConvLayer(PreNormLayer):
    attention = nn.Part(ShortConv)


class AttentionLayer(PreNormLayer):
    attention = nn.Part(NormedAttention)


def make_layer(scope: nn.Scope) -> PreNormLayer:
    """One block. Its number is in the scope's prefix, `blk.3.`."""
    return AttentionLayer(scope) if scope.options.attends[int(scope.prefix.split(".")[1])] else ConvLayer(scope)


class Lfm2(Decoder):
    options: Lfm2Options
    architecture = "lfm2"

    layers = nn.Blocks(make_layer, "n_layer")
    output_norm = nn.RMSNorm("output_norm", "n_embd", alt="token_embd_norm")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Lfm2Options:
        o = read_common(metadata, n_vocab)
        n_taps = metadata.u32("shortconv.l_cache")
        if not 2 <= n_taps <= MAX_TAPS:
            raise ModelFormatError(f"shortconv.l_cache is 2 to {MAX_TAPS}, got {n_taps}")
        return replace(extended(o, Lfm2Options, n_taps=n_taps), attends=o.attends or (True,) * o.n_layer)

    def layer_state(self, layer: int) -> tuple[tuple[int, ...], ...]:
        o = self.options
        return () if o.attends[layer] else ((o.n_embd, o.n_taps - 1),)
