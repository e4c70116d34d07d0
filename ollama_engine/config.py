"""EngineConfig: how an engine uses the machine, with defaults and ranges stated once."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Literal, get_args

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
        metadata={"help": "requests computed side by side; they share num_ctx x parallel cells [1..64]"},
    )
    max_queue: int = field(
        default=512, metadata={"help": "requests that may wait; more are refused with EngineBusyError [>= 0]"}
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
    verify: bool = field(default=False, metadata={"help": "check the cache's bookkeeping after every step (slow)"})

    def __post_init__(self) -> None:
        self._check_integer("num_ctx", 1, 1 << 24)
        self._check_integer("parallel", 1, MAX_PARALLEL)
        self._check_integer("max_queue", 0, 1 << 20)
        self._check_integer("batch_size", 1, 1 << 16)
        if self.threads is not None:
            self._check_integer("threads", 1, 512)
        if self.gpu_layers is not None:
            self._check_integer("gpu_layers", 0, 1 << 16)
        self._check_integer("main_gpu", 0, 1 << 16)
        if self.tensor_split is not None:
            object.__setattr__(self, "tensor_split", _shares(self.tensor_split))
        if isinstance(self.flash_attention, bool):
            object.__setattr__(self, "flash_attention", "on" if self.flash_attention else "off")
        _choice("flash_attention", self.flash_attention, get_args(FlashAttention))
        _choice("kv_cache_type", self.kv_cache_type, get_args(CacheType))
        for name in ("mmap", "verify"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} is True or False, got {getattr(self, name)!r}")

    def _check_integer(self, name: str, low: int, high: int) -> None:
        """Any integer type will do, numpy's too; it is an int afterwards."""
        value = getattr(self, name)
        try:
            number = operator.index(value)
        except TypeError:
            number = None
        if number is None or isinstance(value, bool) or not low <= number <= high:
            raise ConfigError(f"{name} is a whole number from {low} to {high}, got {value!r}")
        object.__setattr__(self, name, number)


def _choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} is one of {', '.join(choices)}, got {value!r}")


def _shares(value: object) -> tuple[float, ...]:
    shares = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else ()
    numbers = tuple(float(s) for s in shares if isinstance(s, Real) and 0 <= float(s) < math.inf)
    if len(numbers) != len(shares) or not sum(numbers) > 0:
        raise ConfigError(f"tensor_split is a share >= 0 for each GPU with a positive sum, got {value!r}")
    return numbers
