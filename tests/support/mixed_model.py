"""A llama whose layers differ in what they attend to, for tests of caches and of the runner. Not in the product.

    with mixed_llama(window=16, chunk=24):
        ...  # every llama file that is loaded here is such a model

Layers take turns: window, chunk, full. Window layers and chunk layers have positions; full layers have none (as the
full layers of Llama 4), so that their keys must stay when others turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from ollama_engine.kvcache import LayerShape
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models import registry
from ollama_engine.models.llama import Llama

KINDS = ("window", "chunk", "full")


class MixedLlama(Llama):
    """Made with the limits of the enclosing `mixed_llama`."""

    window = 16
    chunk = 24

    def __init__(self, metadata: Metadata, weights: Mapping[str, Tensor]) -> None:
        super().__init__(metadata, weights)
        ropes = tuple(None if KINDS[i % 3] == "full" else rope for i, rope in enumerate(self.options.ropes))
        self.options = replace(self.options, ropes=ropes)

    @property
    def cache_layers(self) -> tuple[LayerShape, ...]:
        """Window, chunk, full, window, ..."""
        shape = replace(super().cache_layers[0], window=None)
        turns = (replace(shape, window=self.window), replace(shape, chunk=self.chunk), shape)
        return tuple(turns[i % 3] for i in range(self.options.n_layer))


@contextmanager
def mixed_llama(window: int = 16, chunk: int = 24) -> Iterator[None]:
    """Load llama files as mixed ones."""
    with (
        patch.multiple(MixedLlama, window=window, chunk=chunk),
        patch.dict(registry._BUILT_IN, {"llama": "tests.support.mixed_model:MixedLlama"}),
    ):
        yield
