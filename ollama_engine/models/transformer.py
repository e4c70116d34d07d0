"""Base of decoders and text encoders: the token embedding, and the loop over layers.

It reads options, binds weights, and implements `base.Model`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.kvcache import LayerShape, LayerView
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep
from ollama_engine.models.base import ModelInputs
from ollama_engine.models.media_rows import with_features
from ollama_engine.models.options import Options, read_common


class Transformer(nn.Module):
    """A whole model. A subclass names its architecture and blocks, and reads its options."""

    architecture: ClassVar[str]

    token_embd = nn.Embedding("token_embd", "n_embd", "n_vocab")
    layers: nn.Blocks[Any] = nn.Blocks(nn.Module, "n_layer")

    gives_aux_states: ClassVar[bool] = True
    """Whether `through_layers` fills `ModelInputs.aux_states`."""

    def __init__(self, metadata: Metadata, weights: Mapping[str, Tensor]) -> None:
        if "token_embd.weight" not in weights:
            raise ModelFormatError("the file has no tensor token_embd.weight; is it a vocabulary-only file?")
        self.options = self.read_options(metadata, weights["token_embd.weight"].dim(1))
        scope = nn.Scope(weights, self.options)
        super().__init__(scope)
        nn.read_ahead(self)
        self.unused_weights = tuple(sorted(set(weights) - scope.used))

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        """Options of a file; `n_vocab` counts the rows of its token embedding. Raises ModelFormatError."""
        return read_common(metadata, n_vocab)

    @property
    def n_vocab(self) -> int:
        """Rows of the token embedding, and the length of a row of logits."""
        return self.options.n_vocab

    @property
    def n_input_ids(self) -> int:
        """Rows of the token embedding."""
        return self.token_embd.tensor.dim(1)

    @property
    def n_embd(self) -> int:
        """Length of a hidden state."""
        return self.options.n_embd

    @property
    def context_length(self) -> int:
        """Longest text that the model was trained for, in tokens."""
        return self.options.context_length

    @property
    def cache_layers(self) -> tuple[LayerShape, ...]:
        """The same head size for keys and values of every layer with attention; each layer has its own window."""
        o = self.options
        attends = o.attends or (True,) * o.n_layer
        return tuple(
            LayerShape(
                kv_heads=o.n_head_kv if attends[i] else 0, key_dim=o.head_dim if attends[i] else 0,
                value_dim=o.head_dim if attends[i] else 0, window=window, state=self.layer_state(i),
            )
            for i, window in enumerate(o.windows)
        )  # fmt: skip

    def layer_state(self, layer: int) -> tuple[tuple[int, ...], ...]:
        """The shapes of a layer's recurrent state: see `LayerShape.state`."""
        return ()

    def rope_factors(self, like: Tensor) -> Tensor | None:
        """Divisors of the rotary angles, or None. `like` is a tensor of the graph that will use them."""
        return None

    def layer_factors(self, layer: int, factors: Tensor | None) -> Tensor | None:
        """What of `rope_factors` a layer has: local layers with a rotation of their own have none."""
        return factors if self.options.ropes[layer] is self.options.rope else None

    def temperature(self, positions: Tensor) -> Tensor | None:
        """Factors of the queries at `positions`, f32 [1, 1, n]; None for 1."""
        return None

    def through_layers(self, x: Tensor, inputs: ModelInputs, cache: LayerView) -> Tensor:
        """Run all layers: x [n_embd, n] -> [n_embd, n_outputs]."""
        o, factors, temperature = self.options, self.rope_factors(inputs.tokens), self.temperature(inputs.positions)
        for i, layer in enumerate(self.layers):
            cache.set_layer(i)
            outputs = inputs.outputs if i == o.n_layer - 1 else None
            own = self.layer_factors(i, factors)
            x = layer.forward(x, LayerStep(inputs.positions, o.ropes[i], own, cache, outputs, temperature), o)
            x = with_features(x, inputs, i)
            inputs.keep_aux(i + 1, x)
        return x
