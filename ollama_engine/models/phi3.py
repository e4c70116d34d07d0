"""Phi-3, Phi-3.5 and Phi-4: `general.architecture` = phi3.

A Llama whose query, key and value projections are one matrix, and whose gate and up projections are another. Long
contexts have two sets of rotary factors (LongRoPE, Ding et al. 2024). Source: Abdin et al. 2024.

transformers keeps the sliding window of the config in every layer, llama.cpp drops it; here it is kept. transformers
takes the short factors for texts up to the original context and the long ones beyond, which a cache of rotated keys
cannot follow; here, as in llama.cpp, the size of the context decides once: see `fit_context`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ollama_engine import nn
from ollama_engine.ml import ops
from ollama_engine.ml.metadata import Metadata
from ollama_engine.ml.tensor import Tensor
from ollama_engine.models.decoder import Attention, Decoder, PreNormLayer
from ollama_engine.models.options import DecoderOptions, read_decoder, read_windows


class FusedAttention(Attention):
    """Queries, keys and values are rows of one product, in this order."""

    qkv = nn.Linear("attn_qkv", "n_embd", "qkv_size")

    def project(self, x: Tensor, o: DecoderOptions) -> tuple[Tensor, Tensor, Tensor]:
        """See Attention."""
        rows = self.qkv(x)
        return (
            _heads(rows, o.head_dim, 0, o.n_head),
            _heads(rows, o.head_dim, o.n_head, o.n_head_kv),
            ops.cont(_heads(rows, o.head_dim, o.n_head + o.n_head_kv, o.n_head_kv)),  # the cache takes no views
        )


def _heads(rows: Tensor, head_dim: int, first: int, count: int) -> Tensor:
    """`count` heads of rows [head_dim * all heads, n], from the one numbered `first` on: [head_dim, count, n]."""
    size = rows.stride(0) * head_dim
    return ops.view(rows, (head_dim, count, rows.dim(1)), (size, rows.stride(1)), first * size)


class FusedMLP(nn.Module):
    """SwiGLU whose gate and up projections are the halves of one product."""

    gate_up = nn.Linear("ffn_up", "n_embd", "n_ff_twice")
    down = nn.Linear("ffn_down", "n_ff", "n_embd")

    def forward(self, x: Tensor) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        rows = self.gate_up(x)
        n_ff, n = rows.dim(0) // 2, rows.dim(1)
        gate, up = (
            ops.cont(ops.view(rows, (n_ff, n), (rows.stride(1),), half * n_ff * rows.stride(0))) for half in (0, 1)
        )
        return self.down(ops.glu(gate, up))


class Layer(PreNormLayer):
    """One block."""

    attention = nn.Part(FusedAttention)
    mlp = nn.Part(FusedMLP)


class Phi3(Decoder):
    """The whole model."""

    architecture = "phi3"

    layers = nn.Blocks(Layer, "n_layer")
    short_factors = nn.Factors("rope_factors_short", "n_rope_factors")
    long_factors = nn.Factors("rope_factors_long", "n_rope_factors")

    def __init__(self, metadata: Metadata, weights: Mapping[str, Tensor]) -> None:
        super().__init__(metadata, weights)
        self.fit_context(self.context_length)

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> DecoderOptions:
        """See Decoder."""
        fields = read_decoder(metadata, n_vocab, longrope=True)
        return DecoderOptions(**fields | {"windows": read_windows(metadata, fields["n_layer"], period=0)})

    def fit_context(self, num_ctx: int) -> None:
        """Requests will hold up to `num_ctx` tokens: chooses the long factors beyond the original context."""
        self._long = num_ctx > self.options.rope.original_context

    def rope_factors(self, like: Tensor) -> Tensor | None:
        """One of the two sets, if the model has them."""
        return (self.long_factors if self._long else self.short_factors).weight
