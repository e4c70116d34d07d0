"""A llama whose layers differ in what they attend to, for tests of caches and of the runner. Not in the product.

    with mixed_llama(window=16, chunk=24):
        ...  # every llama file that is loaded here is such a model

Layers take turns: window, chunk, full. Window layers and chunk layers have positions; full layers have none (as the
full layers of Llama 4), so that their keys must stay when others turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from ollama_engine.kvcache import LayerShape, LayerView
from ollama_engine.ml.tensor import Tensor
from ollama_engine.models import ModelInputs, registry
from ollama_engine.models.llama import Llama

KINDS = ("window", "chunk", "full")


class MixedLlama(Llama):
    """Made with the limits of the enclosing `mixed_llama`."""

    window = 16
    chunk = 24

    @property
    def cache_layers(self) -> tuple[LayerShape, ...]:
        """Window, chunk, full, window, ..."""
        shape = replace(super().cache_layers[0], window=None)
        turns = (replace(shape, window=self.window), replace(shape, chunk=self.chunk), shape)
        return tuple(turns[i % 3] for i in range(self.options.n_layer))

    def forward(self, inputs: ModelInputs, cache: LayerView) -> Tensor:
        """As a llama, with all angles 0 in full layers."""
        o = self.options
        x = self.token_embd(inputs.tokens)
        still = replace(o, rope=replace(o.rope, scale=0.0))
        for i, layer in enumerate(self.layers):
            cache.set_layer(i)
            outputs = inputs.outputs if i == o.n_layer - 1 else None
            options = still if KINDS[i % 3] == "full" else o
            x = layer.forward(x, inputs, self.rope_freqs.weight, cache, options, outputs)
        return self.output(self.output_norm(x, o.norm_eps))

    def shift_keys(self, layer: int, keys: Tensor, deltas: Tensor) -> Tensor:
        """Keys without positions stay."""
        return keys if KINDS[layer % 3] == "full" else super().shift_keys(layer, keys, deltas)


@contextmanager
def mixed_llama(window: int = 16, chunk: int = 24) -> Iterator[None]:
    """Load llama files as mixed ones."""
    with (
        patch.multiple(MixedLlama, window=window, chunk=chunk),
        patch.dict(registry._BUILT_IN, {"llama": "tests.mixed_model:MixedLlama"}),
    ):
        yield
