"""The cache of cross-attention layers in a step without images, such as that of a text to embed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from ollama_engine.input import Batch
from ollama_engine.kvcache.base import GraphInputs
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor


class NoImages:
    """No row sees an image, so a model skips the layer. See `ImageView` and `StepCache`."""

    def __init__(self, *, flash_attention: bool) -> None:
        self._flash_attention = flash_attention

    # ** used by models ************************************************************************************************

    rotation = 0

    @property
    def flash_attention(self) -> bool:
        return self._flash_attention

    @property
    def sees_images(self) -> bool:
        """False."""
        return False

    @property
    def gate(self) -> NoReturn:
        raise ValueError("no token of this batch sees an image; skip the layer")

    def set_layer(self, layer: int) -> None:
        """Does nothing: all layers are alike."""

    def put(self, key: Tensor, value: Tensor) -> NoReturn:
        raise ValueError("no image comes with this batch")

    def get(self) -> NoReturn:
        raise ValueError("no token of this batch sees an image; skip the layer")

    # ** used by the executor ******************************************************************************************

    def begin(self, batch: Batch) -> None:
        """Raise ValueError for a batch with images."""
        if batch.images is not None and len(batch.images):
            raise ValueError("images need a cache of the kind that stores them")

    def roll_back(self, batch: Batch) -> None:
        """Does nothing: there is nothing to undo."""

    def worst_cases(self, n_tokens: int) -> Iterator[None]:
        """All graphs are alike."""
        yield

    @property
    def shape_key(self) -> tuple[int, ...]:
        """Empty: nothing here shapes a graph."""
        return ()

    def build_inputs(self, ctx: Context) -> GraphInputs:
        """None are needed."""
        return GraphInputs((), lambda: None)
