"""ERNIE 4.5, dense and with experts: `general.architecture` = ernie4_5 or ernie4_5-moe.

A Llama; from some block on, every so many blocks have experts, which probabilities plus a bias choose and probabilities
alone weigh, and some that all tokens share. Source: Baidu 2025.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.gguf.gating import SOFTMAX
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.decoder import Decoder, PreNormLayer, SparseLayer
from ollama_engine.models.experts import CorrectedMLP, read_mixture
from ollama_engine.models.options import Options, extended, read_common


@dataclass(frozen=True, kw_only=True)
class ErnieOptions(Options):
    """Options of ERNIE 4.5 with experts."""

    every: int
    """Every so many blocks have experts."""


class ProbableMLP(CorrectedMLP):
    """Experts that are chosen by probabilities and a bias."""

    def route(self, x: Tensor, o: Options) -> tuple[Tensor, Tensor]:
        return nn.route_corrected(
            self.router(x), self.correction.tensor, o.n_expert_used, normalize=True, scale=o.expert_scale, softmax=True
        )


class ExpertLayer(SparseLayer):
    mlp = nn.Part(ProbableMLP)


def make_layer(scope: nn.Scope) -> PreNormLayer:
    """One block of a model with experts."""
    o: ErnieOptions = scope.options
    sparse = scope.block >= o.n_dense and (scope.block + 1) % o.every == 0
    return (ExpertLayer if sparse else PreNormLayer)(scope)


class Ernie45(Decoder):
    architecture = "ernie4_5"

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        return read_common(metadata, n_vocab, rope_mode="norm")


class Ernie45Moe(Ernie45):
    architecture = "ernie4_5-moe"

    layers = nn.Blocks(make_layer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> ErnieOptions:
        every = metadata.u32("interleave_moe_layer_step", 1)
        if every < 1:
            raise ModelFormatError("interleave_moe_layer_step must not be 0")
        o = replace(Ernie45.read_options(metadata, n_vocab), **read_mixture(metadata, gating=SOFTMAX))
        return extended(o, ErnieOptions, every=every)
