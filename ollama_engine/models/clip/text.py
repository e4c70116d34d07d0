"""The halves of CLIP and SigLIP that read texts: a text to one vector, in the space of the images' vectors.

CLIP's tokens attend to those before them, and the hidden state of the end token is projected. SigLIP's attend to all of
a text, which is padded to the length that it was trained with; its last place is projected, padding or not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ollama_engine import nn
from ollama_engine.kvcache import LayerView
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.base import ModelInputs
from ollama_engine.models.bert import BertAttention
from ollama_engine.models.bidirectional import LearntPositions
from ollama_engine.models.decoder import PreNormLayer
from ollama_engine.models.options import LAYER_EPS, Options, extended, read_common
from ollama_engine.nn import clip


@dataclass(frozen=True, kw_only=True)
class TextOptions(Options):
    activation: str
    n_vector: int
    """Length of a text's vector, and of an image's."""


class TextMLP(clip.ClipMLP):
    fc1 = nn.Linear("ffn_up", "n_embd", "n_ff", bias=True)
    fc2 = nn.Linear("ffn_down", "n_ff", "n_embd", bias=True)


class TextLayer(PreNormLayer):
    attn_norm = nn.LayerNorm("attn_norm", "n_embd", bias=True)
    attention = nn.Part(BertAttention)
    ffn_norm = nn.LayerNorm("ffn_norm", "n_embd", bias=True)
    mlp = nn.Part(TextMLP)


class TextHalf(LearntPositions):
    """Implements `models.TextEncoder` and `models.ProjectsVectors`."""

    n_token_types = 0
    options: TextOptions

    layers = nn.Blocks(TextLayer, "n_layer")
    output_norm = nn.LayerNorm("output_norm", "n_embd", bias=True)
    projection = nn.Linear("text_projection", "n_embd", "n_vector")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> TextOptions:
        """No layer rotates: positions are learnt vectors."""
        o = read_common(metadata, n_vocab, eps=LAYER_EPS)
        activation = clip.check_activation(metadata.str("activation"))
        n_vector = metadata.u32("vision.projection_dim", metadata.u32("vision.embedding_length"))
        return extended(replace(o, ropes=(None,) * o.n_layer), TextOptions, activation=activation, n_vector=n_vector)

    @property
    def n_vector(self) -> int:
        """Length of a text's vector."""
        return self.options.n_vector

    def hidden(self, inputs: ModelInputs, cache: LayerView) -> Tensor:
        """Build the graph: hidden states f32 [n_embd, n_outputs]."""
        x = self.token_embd(inputs.tokens) + self.position_embd(inputs.positions)
        return self.output_norm(self.through_layers(x, inputs, cache), self.options.norm_eps)

    forward = hidden

    def project(self, pooled: Tensor) -> Tensor:
        """Build the graph: pooled hidden states f32 [n_embd, n] -> vectors f32 [n_vector, n]."""
        return self.projection(pooled)
