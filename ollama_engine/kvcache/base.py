"""Contracts of a cache, split by audience: models see `LayerView`, the runner sees `Cache`."""

from __future__ import annotations

from typing import Protocol

from ollama_engine.input import Batch
from ollama_engine.ml.context import Context
from ollama_engine.ml.tensor import Tensor


class LayerView(Protocol):
    """** used by models, while a graph is built **"""

    @property
    def flash_attention(self) -> bool:
        """Whether `get` hands out what flash attention reads, or values permuted for two products."""

    def set_layer(self, layer: int) -> None:
        """Choose the layer that `put` and `get` speak of."""

    def put(self, key: Tensor, value: Tensor) -> None:
        """Store keys [key_dim, kv_heads, n] and values [value_dim, kv_heads, n] of this batch's tokens."""

    def get(self) -> tuple[Tensor, Tensor, Tensor]:
        """Keys [key_dim, history, kv_heads], values, and the mask f16 [history, n] of this layer.

        Values are [value_dim, history, kv_heads] with flash attention and [history, value_dim, kv_heads] without.
        """


class Cache(LayerView, Protocol):
    """** used by the runner **"""

    def begin(self, batch: Batch) -> None:
        """Find cells for the batch's tokens. Raises ContextOverflowError, changing nothing, when too few are free."""

    def begin_reserve(self, n_tokens: int) -> None:
        """Prepare for building a worst-case graph: as many tokens, the whole history, no cells taken."""

    @property
    def shape_key(self) -> tuple[int, ...]:
        """What of the current batch shapes the graph; graphs of one key are interchangeable."""

    def build_inputs(self, ctx: Context) -> None:
        """Make the input tensors (cell indices, mask) of a new graph."""

    def write_inputs(self) -> None:
        """Write the current batch's values into the inputs of the latest graph."""

    def remove(self, sequence: int, begin: int = 0, end: int | None = None) -> None:
        """Forget tokens of a sequence, from position `begin` to before `end`."""

    def scrub(self) -> None:
        """Zero the free cells. For after a step that computed NaN or infinity: a mask does not hide those."""

    @property
    def nbytes(self) -> dict[str, int]:
        """Memory taken, {device name: bytes}."""

    def close(self) -> None:
        """Free the memory."""
