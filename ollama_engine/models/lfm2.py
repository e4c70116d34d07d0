"""LFM2, dense and with experts: `general.architecture` = lfm2 or lfm2moe.

Most blocks have a short convolution with two gates in place of attention; the others have normalized heads as Qwen3.
In lfm2moe, all blocks but the first have experts, which a bias helps choose. LFM2-VL reads images (`lfm2_vl`).
Source: Amini et al. 2025 (LFM2 technical report, arXiv:2511.23404).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ollama_engine import nn
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep
from ollama_engine.models.decoder import Decoder, PreNormLayer, SparseLayer
from ollama_engine.models.experts import CorrectedMLP, read_mixture
from ollama_engine.models.images import ImageReader
from ollama_engine.models.lfm2_vl.multimodal import Lfm2Multimodal
from ollama_engine.models.options import Options, extended, read_common, read_taps
from ollama_engine.models.qwen3 import NormedAttention


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
        return self.out_proj(self.conv(self.in_proj(x), step.cache, gated=True))


class ConvLayer(PreNormLayer):
    attention = nn.Part(ShortConv)


class AttentionLayer(PreNormLayer):
    attention = nn.Part(NormedAttention)


class SparseConvLayer(SparseLayer):
    attention = nn.Part(ShortConv)
    mlp = nn.Part(CorrectedMLP)


class SparseAttentionLayer(SparseLayer):
    attention = nn.Part(NormedAttention)
    mlp = nn.Part(CorrectedMLP)


def make_layer(scope: nn.Scope) -> PreNormLayer:
    """A block without experts."""
    return (AttentionLayer if scope.options.attends[scope.block] else ConvLayer)(scope)


def make_sparse_layer(scope: nn.Scope) -> PreNormLayer:
    """A block of a model with experts."""
    if scope.block < scope.options.n_dense:
        return make_layer(scope)
    return (SparseAttentionLayer if scope.options.attends[scope.block] else SparseConvLayer)(scope)


class Lfm2(ImageReader, Decoder):
    options: Lfm2Options
    architecture = "lfm2"

    vision_tensor = "v.patch_embedding.weight"
    vision_part = Lfm2Multimodal

    layers = nn.Blocks(make_layer, "n_layer")
    output_norm = nn.RMSNorm("output_norm", "n_embd", alt="token_embd_norm")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Lfm2Options:
        o = read_common(metadata, n_vocab)
        n_taps = read_taps(metadata, "shortconv.l_cache")
        return replace(extended(o, Lfm2Options, n_taps=n_taps), attends=o.attends or (True,) * o.n_layer)

    def layer_state(self, layer: int) -> tuple[tuple[int, ...], ...]:
        o = self.options
        return () if o.attends[layer] else ((o.n_embd, o.n_taps - 1),)


class Lfm2Moe(Lfm2):
    architecture = "lfm2moe"

    layers = nn.Blocks(make_sparse_layer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Lfm2Options:
        o = Lfm2.read_options(metadata, n_vocab)
        return replace(o, **read_mixture(metadata, normalize=metadata.bool("norm_top_k_prob", True)))
