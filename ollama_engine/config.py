"""EngineConfig: how an engine uses the machine, with defaults and ranges stated once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ollama_engine.errors import ConfigError

__all__ = ["CacheType", "EngineConfig", "FlashAttention"]

FlashAttention = Literal["auto", "on", "off"]
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0"]

MAX_PARALLEL = 64


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Options of an engine. Every one takes effect or is refused with a ConfigError; none is silently ignored."""

    num_ctx: int = field(default=4096, metadata={"help": "tokens of one request, prompt and answer [>= 1]"})
    parallel: int = field(
        default=4,
        metadata={"help": "requests that fit side by side; the cache has num_ctx x parallel cells [1..64]"},
    )
    batch_size: int = field(default=512, metadata={"help": "tokens computed in one step at most [>= 1]"})
    threads: int | None = field(
        default=None, metadata={"help": "CPU threads; by default the physical cores this process may use [1..512]"}
    )
    gpu_layers: int | None = field(
        default=None, metadata={"help": "layers on GPUs, counted from the last; by default all, if there is one [>= 0]"}
    )
    main_gpu: int = field(default=0, metadata={"help": "the GPU to use, unless tensor_split names several [>= 0]"})
    tensor_split: Sequence[float] | None = field(
        default=None, metadata={"help": "share of the layers for each GPU, such as 3,1"}
    )
    flash_attention: FlashAttention | bool = field(
        default="auto", metadata={"help": "one-pass attention: auto, on or off; auto asks the devices"}
    )
    kv_cache_type: CacheType = field(
        default="f16", metadata={"help": "element type of keys and values: f32, f16, bf16, q8_0 or q4_0"}
    )
    mmap: bool = field(default=True, metadata={"help": "read weights from the mapped file instead of copying them"})

    def __post_init__(self) -> None:
        _integer("num_ctx", self.num_ctx, 1, 1 << 24)
        _integer("parallel", self.parallel, 1, MAX_PARALLEL)
        _integer("batch_size", self.batch_size, 1, 1 << 16)
        flash: object = self.flash_attention
        if isinstance(flash, bool):
            object.__setattr__(self, "flash_attention", "on" if flash else "off")
        elif flash not in ("auto", "on", "off"):
            raise ConfigError(f'flash_attention is "auto", "on" or "off" (or a bool), got {flash!r}')
        if not isinstance(self.mmap, bool):
            raise ConfigError(f"mmap is True or False, got {self.mmap!r}")


def _integer(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{name} is a whole number from {low} to {high}, got {value!r}")
