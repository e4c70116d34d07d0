"""Mamba-2: `general.architecture` = mamba2.

Every block is a state-space layer: there is no attention, and no feed-forward part. Source: Dao and Gu 2024.
"""

from __future__ import annotations

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep
from ollama_engine.models.decoder import Decoder
from ollama_engine.models.options import MAX_LAYERS, RMS_EPS
from ollama_engine.models.state_space import StateSpace, StateSpaceOptions, read_state_space


class MambaLayer(nn.Module):
    norm = nn.RMSNorm("attn_norm", "n_embd")
    mixer = nn.Part(StateSpace)

    def forward(self, x: Tensor, step: LayerStep, o: StateSpaceOptions) -> Tensor:
        """x [n_embd, n] -> [n_embd, n], or fewer rows in the last layer."""
        y = self.mixer.forward(self.norm(x, o.norm_eps), step, o)
        return step.output_rows(y) + step.output_rows(x)


class Mamba2(Decoder):
    options: StateSpaceOptions
    architecture = "mamba2"

    layers = nn.Blocks(MambaLayer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> StateSpaceOptions:
        """Options of a file, whose numbers of heads and of feed-forward values are 0. Raises ModelFormatError."""
        n_layer, n_embd = metadata.u32("block_count"), metadata.u32("embedding_length")
        context_length, norm_eps = metadata.u32("context_length"), metadata.f32(RMS_EPS)
        if not 1 <= n_layer <= MAX_LAYERS or min(n_embd, context_length) < 1 or norm_eps < 0:
            raise ModelFormatError(
                f"block_count {n_layer} is 1 to {MAX_LAYERS}, {RMS_EPS} {norm_eps} is 0 or more; embedding_length "
                f"{n_embd} and context_length {context_length} must not be 0"
            )
        return StateSpaceOptions(
            n_layer=n_layer, n_embd=n_embd, n_ff=0, n_head=0, n_head_kv=0, head_dim=0, n_vocab=n_vocab,
            norm_eps=norm_eps, attention_scale=1.0, context_length=context_length, rope=nn.Rope(n_dims=2),
            ropes=(None,) * n_layer, windows=(None,) * n_layer, attends=(False,) * n_layer,
            **read_state_space(metadata),
        )  # fmt: skip

    def layer_state(self, layer: int) -> tuple[tuple[int, ...], ...]:
        return self.options.state
