"""What a cache must know before it is made: sizes from the model, types from the user, padding from the kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from ollama_engine.config import CacheType
from ollama_engine.errors import ConfigError, Option

HISTORY_PADDING = 256
"""Cells that attention reads come in multiples of this, so that a graph lasts for as many tokens."""

PAGED_ROWS = 64
"""Rows of one sequence that our kernel for few rows takes no longer for than ggml's tiled one, which begins here."""

MIXED_ROWS = 32
"""With fewer rows of each sequence than this on average, our kernel takes as many more rows as there are sequences: of
64 rows ggml's takes every one over the cells of all sequences that any of them is of."""

GATHERED_ROWS = 64
"""From this many rows on attention reads copies of keys and values: ggml's tiled kernel takes no fewer."""


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """Keys and values of one layer, for one token."""

    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    """Sliding window: a token sees this many tokens, itself included; None sees all."""
    chunk: int | None = None
    """Chunked attention: a token sees those from the last multiple of this on."""
    image_rows: int | None = None
    """Cross-attention: the layer stores this many rows for one image, and no tokens."""

    @property
    def n_keys(self) -> int:
        """Numbers in the keys of one token."""
        return self.key_dim * self.kv_heads

    @property
    def n_values(self) -> int:
        """Numbers in the values of one token."""
        return self.value_dim * self.kv_heads


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """How keys and values are stored, following what the attention kernel needs."""

    dtype: CacheType
    flash_attention: bool
    history_padding: int = HISTORY_PADDING
    paged_rows: int = PAGED_ROWS
    """Graphs of up to this many rows take indices in place of a mask, where the kernel for that is chosen; and of up to
    `sequences` more, where few are of one sequence. 0: none do.
    """
    gathered_rows: int | None = GATHERED_ROWS
    """Other graphs of at least as many rows gather what they read, on the CPU with flash attention. None: none."""
    sequences: int = PAGED_ROWS
    """Sequences that one batch has at most."""

    @property
    def permuted_values(self) -> bool:
        """Without flash attention the values of one dimension lie side by side, as the second product reads them."""
        return not self.flash_attention

    def __post_init__(self) -> None:
        if self.dtype not in get_args(CacheType):
            raise ConfigError(
                Option("kv_cache_type"), f" is one of {', '.join(get_args(CacheType))}, got {self.dtype!r}"
            )
        if not self.flash_attention and self.dtype in ("q8_0", "q4_0"):
            raise ConfigError(
                Option("kv_cache_type"),
                f" {self.dtype} needs flash attention, which is off",
                advice=[("choose ", Option("kv_cache_type", "f16")), ("leave ", Option("flash_attention", "auto"))],
            )

    def check(self, layer: LayerShape) -> None:
        """Raise ConfigError where a layer's heads cannot be stored in this type."""
        if self.dtype in ("q8_0", "q4_0") and (layer.key_dim % 32 or layer.value_dim % 32):
            raise ConfigError(
                Option("kv_cache_type"),
                f" {self.dtype} stores blocks of 32 values, but this model's heads have {layer.key_dim} and "
                f"{layer.value_dim}; choose f16 or bf16",
            )
