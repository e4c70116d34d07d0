"""Configuration of a cache: sizes from the model, element types from the user, padding from the kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

from ollama_engine.config import CacheType
from ollama_engine.errors import ConfigError, Option
from ollama_engine.ml.graph.types import block_of

HISTORY_PADDING = 256
"""Attention reads cells in multiples of this, so that a graph can be reused for about as many tokens."""

PIECE_ROWS = 64
"""Up to this many rows our paged kernel keeps a partial result for each piece of a list, so this many take most memory
(FEW_ROWS of csrc/kernels/attention_op.c)."""

GATHERED_ROWS = 64
"""From this many rows on, attention reads gathered keys and values: fewer do not fill ggml's tiled kernel."""


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """What one layer stores: keys and values for each token, a recurrent state for each sequence, both, or nothing."""

    kv_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    window: int | None = None
    """Sliding window: a token sees this many tokens, itself included; None sees all."""
    chunk: int | None = None
    """Chunked attention (Llama 4): a token sees the positions from the last multiple of this on."""
    causal_images: bool = False
    """Whether rows of one image see earlier rows only, where other layers let them see each other (Gemma 4)."""
    image_rows: int | None = None
    """Cross-attention: the layer stores this many rows for each image, and no tokens."""
    latent: bool = False
    """Latent attention: values are the first `value_dim` numbers of the keys, and not stored a second time."""
    state: tuple[tuple[int, ...], ...] = ()
    """Shapes of the parts of a recurrent state, all f32, such as a convolution's window and an SSM's matrix."""

    @property
    def attends(self) -> bool:
        """Whether the layer stores keys and values."""
        return self.kv_heads > 0

    @property
    def state_bytes(self) -> int:
        """Bytes of one recurrent state."""
        return 4 * sum(math.prod(part) for part in self.state)

    @property
    def n_keys(self) -> int:
        """Numbers in the keys of one token."""
        return self.key_dim * self.kv_heads

    @property
    def n_values(self) -> int:
        """Numbers that are stored for the values of one token."""
        return 0 if self.latent else self.value_dim * self.kv_heads


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """How keys and values are stored, and which way to attention a graph takes."""

    dtype: CacheType
    flash_attention: bool
    history_padding: int = HISTORY_PADDING
    paged: bool = True
    """Whether graphs take KV indices instead of a mask, where our kernel is chosen: see `paged.suits_paging`."""
    gathered_rows: int | None = GATHERED_ROWS
    """Other graphs of at least this many rows gather what they read (CPU, flash attention). None: no graph does."""
    sequences: int = 64
    """Most sequences of one batch."""
    images: int = 1
    """Most new images of one batch, for cross-attention."""

    def __post_init__(self) -> None:
        if self.dtype not in get_args(CacheType):
            raise ConfigError(
                Option("kv_cache_type"), f" is one of {', '.join(get_args(CacheType))}, got {self.dtype!r}"
            )
        if not self.flash_attention and block_of(self.dtype)[0] > 1:
            raise ConfigError(
                Option("kv_cache_type"),
                f" {self.dtype} needs flash attention, which is off",
                advice=[("choose ", Option("kv_cache_type", "f16")), ("leave ", Option("flash_attention", "auto"))],
            )

    def check(self, layer: LayerShape) -> None:
        """Raise ConfigError where a layer's heads cannot be stored in this type."""
        numbers, _ = block_of(self.dtype)
        if layer.key_dim % numbers or layer.value_dim % numbers:
            raise ConfigError(
                Option("kv_cache_type"),
                f" {self.dtype} stores blocks of {numbers} values, but this model's heads have {layer.key_dim} and "
                f"{layer.value_dim}; choose f16 or bf16",
            )
