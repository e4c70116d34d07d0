"""OLMo Hybrid: `general.architecture` = olmo-hybrid.

Most blocks have a gated delta net, behind a norm; an update may be twice as strong as usual, so that states can turn
over. The others are those of OLMo 3, without positions. llama.cpp has no name for it.
Source: OLMo team 2026, as transformers has it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep, heads
from ollama_engine.models.decoder import Decoder, PreNormLayer
from ollama_engine.models.delta_net import L2_EPS, DeltaNetOptions, read_delta_net, read_linear_layers
from ollama_engine.models.olmo2 import Layer as AttentionLayer
from ollama_engine.models.options import extended, read_common

OUTPUT_EPS = 1e-5
"""Epsilon of the norm behind a delta net, whatever rms_norm_eps is."""


@dataclass(frozen=True, kw_only=True)
class HybridOptions(DeltaNetOptions):
    strength: float
    """What a sigmoid is multiplied by to be the strength of an update, 1 or 2."""

    @property
    def key_size(self) -> int:
        """Numbers in the keys of one token, in a delta net."""
        return self.n_key_heads * self.key_dim


class SplitDeltaNet(nn.Module):
    """A delta net whose queries, keys and values have projections and convolutions of their own."""

    q = nn.Linear("attn_q", "n_embd", "key_size")
    k = nn.Linear("attn_k", "n_embd", "key_size")
    v = nn.Linear("attn_v", "n_embd", "value_size")
    q_conv = nn.CausalConv("ssm_conv1d_q", "n_taps", "key_size")
    k_conv = nn.CausalConv("ssm_conv1d_k", "n_taps", "key_size")
    v_conv = nn.CausalConv("ssm_conv1d_v", "n_taps", "value_size")
    beta = nn.Linear("ssm_beta", "n_embd", "n_value_heads")
    alpha = nn.Linear("ssm_alpha", "n_embd", "n_value_heads")
    dt = nn.Vector("ssm_dt.bias", "n_value_heads")
    a = nn.Vector("ssm_a", "n_value_heads")
    gate = nn.Linear("attn_gate", "n_embd", "value_size")
    norm = nn.RMSNorm("ssm_norm", "value_dim")
    out = nn.Linear("ssm_out", "value_size", "n_embd")

    def forward(self, x: Tensor, step: LayerStep, o: HybridOptions) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        *qkv, beta, alpha, gate = nn.linears(x, self.q, self.k, self.v, self.beta, self.alpha, self.gate)
        convs = (self.q_conv, o.key_dim), (self.k_conv, o.key_dim), (self.v_conv, o.value_dim)
        q, k, v = (
            heads(conv(rows, step.cache, part, silu=True), dim)
            for part, (rows, (conv, dim)) in enumerate(zip(qkv, convs, strict=True))
        )
        g = ops.unary(alpha + self.dt.tensor, "softplus") * self.a.tensor
        beta = ops.scale(ops.unary(beta, "sigmoid"), o.strength)
        y = nn.delta_net(q, k, v, g, beta, step.cache, part=3, grouped=o.grouped, eps=L2_EPS)
        y = ops.glu(heads(gate, o.value_dim), self.norm(y, OUTPUT_EPS))
        return self.out(ops.reshape(y, o.value_size, x.dim(1)))


class LinearLayer(PreNormLayer):
    attention = nn.Part(SplitDeltaNet)


class OlmoHybrid(Decoder):
    options: HybridOptions
    architecture = "olmo-hybrid"

    layers = nn.Blocks(
        lambda scope: (AttentionLayer if scope.options.attends[scope.block] else LinearLayer)(scope), "n_layer"
    )

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> HybridOptions:
        fields, strength = read_delta_net(metadata, grouped=True), metadata.f32("ssm.beta_scale", 1.0)
        if not 0 < strength <= 2:
            raise ModelFormatError(f"ssm.beta_scale {strength:g} is more than 0 and 2 at most")
        o = extended(read_common(metadata, n_vocab), HybridOptions, **fields, strength=strength)
        # Published models have no positions.
        ropes = o.ropes if "rope.freq_base" in metadata else (None,) * o.n_layer
        return replace(o, attends=read_linear_layers(metadata, o), ropes=ropes)

    def layer_state(self, layer: int) -> tuple[tuple[int, ...], ...]:
        """A delta net has a window for each of its convolutions, and a matrix for each head."""
        o = self.options
        if o.attends[layer]:
            return ()
        window = (o.key_size, o.n_taps - 1)
        return window, window, (o.value_size, o.n_taps - 1), (o.value_dim, o.key_dim, o.n_value_heads)
