"""Base of decoders: the usual block, and tokens to logits."""

from __future__ import annotations

from typing import Any, ClassVar

from ollama_engine import nn
from ollama_engine.kvcache import LayerView
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep, SelfAttention
from ollama_engine.models.base import ModelInputs
from ollama_engine.models.media_rows import with_embeddings
from ollama_engine.models.options import Options
from ollama_engine.models.transformer import Transformer


class PreNormLayer(nn.Module):
    """One block: attention, then feed-forward, each after a norm and with a residual."""

    attn_norm: nn.Norm = nn.RMSNorm("attn_norm", "n_embd")
    attention: nn.Part[Any] = nn.Part(SelfAttention)
    ffn_norm: nn.Norm = nn.RMSNorm("ffn_norm", "n_embd")
    mlp: nn.Part[Any] = nn.Part(nn.GatedMLP)

    def forward(self, x: Tensor, step: LayerStep, o: Options) -> Tensor:
        """x [n_embd, n] -> [n_embd, n], or fewer rows in the last layer."""
        a = self.attention.forward(self.attn_norm(x, o.norm_eps), step, o)
        x = step.output_rows(a) + step.output_rows(x)
        return self.feed_forward(self.ffn_norm(x, o.norm_eps), o) + x

    def feed_forward(self, x: Tensor, o: Options) -> Tensor:
        """x [n_embd, n] -> [n_embd, n], without norm and residual."""
        out: Tensor = self.mlp.forward(x)
        return out


class SparseLayer(PreNormLayer):
    """A block whose feed-forward part is a mixture of experts."""

    def feed_forward(self, x: Tensor, o: Options) -> Tensor:
        out: Tensor = self.mlp.forward(x, o)
        return out


class Decoder(Transformer):
    """A generative model: each token attends to those before it, and the last hidden states become logits."""

    layers: nn.Blocks[Any] = nn.Blocks(PreNormLayer, "n_layer")
    output_norm: nn.Norm = nn.RMSNorm("output_norm", "n_embd")
    output = nn.Linear("output", "n_embd", "n_vocab", alt="token_embd")
    rope_freqs: nn.Weight = nn.Factors("rope_freqs", "n_rope_factors")

    next_block: ClassVar[type[PreNormLayer] | None] = None
    """The block of a head that predicts a token further ahead (`models.next_tokens`), in families that have one."""

    def embed(self, tokens: Tensor) -> Tensor:
        """i32 [n] -> f32 [n_embd, n]."""
        return self.token_embd(tokens)

    def embed_inputs(self, inputs: ModelInputs) -> Tensor:
        """f32 [n_embd, n]: embeddings of the tokens, replaced in the rows of media by those of the media."""
        return with_embeddings(self.embed(inputs.tokens), inputs)

    def logits(self, x: Tensor) -> Tensor:
        """Hidden states [n_embd, n] -> f32 [n_vocab, n]."""
        return self.output(x)

    def forward(self, inputs: ModelInputs, cache: LayerView) -> Tensor:
        """Build the graph: logits f32 [n_vocab, n_outputs]."""
        return self.logits(self.hidden(inputs, cache))

    def hidden(self, inputs: ModelInputs, cache: LayerView) -> Tensor:
        """Build the graph: hidden states f32 [n_embd, n_outputs]."""
        x = self.through_layers(self.embed_inputs(inputs), inputs, cache)
        return self.output_norm(x, self.options.norm_eps)

    def shift_keys(self, layer: int, keys: Tensor, deltas: Tensor) -> Tensor:
        """Keys f32 [head_dim, n_head_kv, n] of a layer, moved to their positions plus `deltas` i32 [n]."""
        rope = self.options.ropes[layer]
        return keys if rope is None else rope.shifted(keys, deltas, self.layer_factors(layer, self.rope_factors(keys)))

    def rope_factors(self, like: Tensor) -> Tensor | None:
        """Those of Llama 3.1, where the file has some."""
        return self.rope_freqs.weight
