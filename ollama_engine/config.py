"""EngineConfig: how an engine uses the machine. Each option's values are stated and checked here, for all rooms."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from typing import Any, Literal, TypeVar, get_args

from ollama_engine.errors import ConfigError, Option
from ollama_engine.option_names import refuses_unknown

__all__ = [
    "CHOICES",
    "DEFAULT_NUM_CTX",
    "PYTHON_ONLY",
    "RANGES",
    "CacheType",
    "Drafting",
    "EngineConfig",
    "FlashAttention",
    "OneVector",
    "Pooling",
    "check_options",
    "documented",
]  # fmt: skip

FlashAttention = Literal["auto", "on", "off"]
Drafting = Literal["auto", "lookup", "model", "mtp", "off"]
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "iq4_nl", "q4_0"]

Pooling = Literal["none", "mean", "cls", "last", "rank"]
"""How a text's hidden states become an embedding, in the order of GGUF's `pooling_type`: every token's own vector, the
mean of all, the first token's, the last one's, or scores that a classification head gives the text."""
OneVector = Literal["mean", "cls", "last"]
"""Poolings that make one vector of a text."""

_T = TypeVar("_T")

PYTHON_ONLY = "python only"
"""Metadata key of options that no command line can have: functions, say."""

DEFAULT_NUM_CTX = 4096
"""The most that num_ctx is by default."""

RANGES: Mapping[str, tuple[int, int]] = {
    "num_ctx": (1, 1 << 24),
    "parallel": (1, 1024),
    "max_queue": (0, 1 << 20),
    "batch_size": (1, 1 << 16),
    "threads": (1, 512),  # GGML_MAX_N_THREADS
    "gpu_layers": (0, 1 << 16),
    "main_gpu": (0, 1 << 16),
    "cpu_experts": (0, 1 << 16),
    "image_cache_bytes": (0, 1 << 48),
    "state_cache_bytes": (0, 1 << 48),
    "prefix_store_bytes": (0, 1 << 60),
    "expert_cache_bytes": (1, 1 << 60),
}
"""First and last value of each option that is a whole number."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    "flash_attention": get_args(FlashAttention),
    "kv_cache_type": get_args(CacheType),
    "draft": get_args(Drafting),
}


def documented(cls: type[_T]) -> type[_T]:
    """Add the `help` texts of a dataclass's fields to its docstring, where `help()` shows them."""
    said = (f"    {option.name}: {option.metadata['help']}." for option in fields(cls))  # type: ignore[arg-type]
    cls.__doc__ = "\n".join([(cls.__doc__ or "").rstrip(), "", "    Attributes:", *(f"    {line}" for line in said)])
    return cls


@refuses_unknown()
@documented
@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Options of an engine. Every one takes effect or is refused with a ConfigError; none is silently ignored."""

    num_ctx: int | None = field(
        default=None,
        metadata={
            "help": "tokens of one request, prompt and answer; by default what the model was trained for, "
            f"at most {DEFAULT_NUM_CTX} [>= 1]"
        },
    )
    parallel: int = field(
        default=4,
        metadata={"help": "requests computed side by side; they share num_ctx x parallel cells [1..1024]"},
    )
    max_queue: int = field(
        default=512, metadata={"help": "requests that may wait; more are refused with EngineBusyError [>= 0]"}
    )
    batch_size: int = field(default=512, metadata={"help": "tokens computed in one step at most [>= 1]"})
    threads: int | None = field(
        default=None, metadata={"help": "CPU threads; by default the physical cores this process may use [1..512]"}
    )
    devices: Sequence[str] | None = field(
        default=None,
        metadata={
            "help": "devices to use beside the CPU, by the names that `devices` lists; rpc://HOST:PORT is a worker's"
        },
    )
    gpu_layers: int | None = field(
        default=None, metadata={"help": "layers on GPUs, counted from the last; by default as many as fit [>= 0]"}
    )
    main_gpu: int | None = field(
        default=None,
        metadata={
            "help": "number of the device to fill first, with the output; by default the one with most room [>= 0]"
        },
    )
    tensor_split: Sequence[float] | None = field(
        default=None, metadata={"help": "share of the layers for each GPU, or each of `devices`, such as 3,1"}
    )
    cpu_experts: int | None = field(
        default=None,
        metadata={"help": "layers, from the first, whose experts stay on the CPU; by default as few as may [>= 0]"},
    )
    flash_attention: FlashAttention | bool = field(
        default="auto", metadata={"help": "one-pass attention: auto, on or off; auto asks the devices"}
    )
    kv_cache_type: CacheType = field(
        default="f16", metadata={"help": f"element type of keys and values: {', '.join(get_args(CacheType))}"}
    )
    draft: Drafting = field(
        default="auto",
        metadata={
            "help": "guess tokens that a step verifies beside the next one, where that pays: lookup guesses what "
            "followed the same words before, model has draft_model guess as well, mtp the model's own head "
            "(multi-token prediction), off guesses nothing; auto is the first of model, mtp and lookup that there is, "
            "where that changes no bit of an answer"
        },
    )
    draft_model: str | os.PathLike[str] | None = field(
        default=None,
        metadata={"help": "a smaller model with the same vocabulary, which guesses tokens: its file, or its name"},
    )
    image_cache_bytes: int = field(
        default=512 << 20,
        metadata={"help": "host memory in bytes for embeddings of images, so that an image is encoded once [>= 0]"},
    )
    state_cache_bytes: int = field(
        default=512 << 20,
        metadata={
            "help": "memory in bytes for checkpoints of recurrent models, where prompts that begin alike go on; "
            "at least one for each of `parallel` [>= 0]"
        },
    )
    prefix_store: str | bool = field(
        default="off",
        metadata={
            "help": "keep keys and values of prompts on disk, so that they need not be computed again, also after a "
            "restart: off, on (in the user's cache folder), or a folder; for this user alone to read, not encrypted"
        },
    )
    prefix_store_bytes: int | None = field(
        default=None,
        metadata={
            "help": "bytes that the folder of prefix_store may take; what was not used for longest goes first; by "
            "default 4 GiB, or a tenth of what is free on its disk if that is less [>= 0]"
        },
    )
    mmap: bool = field(default=True, metadata={"help": "read weights from the mapped file, instead of a copy of it"})
    expert_cache_bytes: int | None = field(
        default=None,
        metadata={
            "help": "memory in bytes for experts of a mixture that does not fit into memory: others are read from the "
            "file when the router chooses them; all weights but experts are copied [>= 1]"
        },
    )
    measure_kernels: bool = field(
        default=True,
        metadata={
            "help": "measure at the first load which kernels are the fastest on this CPU, and keep that in the user's "
            "cache folder; off: decide by a built-in table"
        },
    )
    verify: bool = field(default=False, metadata={"help": "check the cache's bookkeeping after every step (slow)"})

    def __post_init__(self) -> None:
        check_options(self)
        if self.draft == "model" and self.draft_model is None:
            raise ConfigError(Option("draft"), " is model, which needs a ", Option("draft_model"))

    def for_model(self, context_length: int) -> EngineConfig:
        """The configuration with num_ctx decided, for a model that was trained for `context_length` tokens."""
        return self if self.num_ctx is not None else replace(self, num_ctx=min(DEFAULT_NUM_CTX, context_length))


def check_options(options: Any) -> None:
    """Check the fields of a frozen dataclass that are named like an option, and put them into their plain form.

    None passes where it is the default. Any integer type will do, numpy's too; it is an int afterwards.
    """
    for option in fields(options):
        value = getattr(options, option.name)
        if value is not None or option.default is not None:
            object.__setattr__(options, option.name, _checked(option.name, value))


def _checked(name: str, value: object) -> object:
    if name in RANGES:
        return _integer(name, value, *RANGES[name])
    if name in CHOICES:
        return _choice(name, value, CHOICES[name])
    if name == "devices":
        return _names(name, value)
    if name == "prefix_store":
        return _place(name, value)
    if name == "draft_model":
        return _path(name, value)
    return _shares(name, value) if name == "tensor_split" else _switch(name, value)


def _integer(name: str, value: object, low: int, high: int) -> int:
    number = as_whole(value, low, high)
    if number is None:
        advice = ["leave it out for as many as fit"] if name == "gpu_layers" else []  # -1 elsewhere
        raise ConfigError(Option(name), f" is a whole number from {low} to {high}, got {value!r}", advice=advice)
    return number


def _choice(name: str, value: object, choices: tuple[str, ...]) -> object:
    if isinstance(value, bool) and {"on", "off"} < set(choices):
        return "on" if value else "off"
    if value not in choices:
        raise ConfigError(Option(name), f" is one of {', '.join(choices)}, got {value!r}")
    return value


def as_whole(value: object, low: int, high: int) -> int | None:
    """A whole number in these bounds, which a truth value is not; None for anything else."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None
    return None if isinstance(value, bool) or not low <= number <= high else number


def as_float(value: object) -> float:
    """The value as a float. NaN, which no range admits, for what is no number (True is none) or too large for one."""
    try:
        return float(value) if not isinstance(value, bool) and isinstance(value, Real) else math.nan
    except OverflowError:
        return math.nan


def _shares(name: str, value: object) -> tuple[float, ...]:
    shares = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else ()
    numbers = tuple(number for number in map(as_float, shares) if 0 <= number < math.inf)
    if len(numbers) != len(shares) or not sum(numbers) > 0:
        raise ConfigError(Option(name), f" is a share >= 0 for each GPU with a positive sum, got {value!r}")
    return numbers


def _place(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    try:
        place = os.fspath(value)  # type: ignore[call-overload]
    except TypeError:
        place = b""
    if not isinstance(place, str) or not place or "\0" in place:
        raise ConfigError(Option(name), f" is on (True), off (False), or the path of a folder, got {value!r:.80}")
    return place


def _path(name: str, value: object) -> str:
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise ConfigError(Option(name), f" is the path of a GGUF file, or a model's name, got {value!r}")
    return os.fsdecode(value)


def _names(name: str, value: object) -> tuple[str, ...]:
    names = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (None,)
    if not all(isinstance(item, str) and item for item in names):
        raise ConfigError(Option(name), f' is a list of names, such as ["rpc://host:50052"], got {value!r}')
    return names


def _switch(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(Option(name), f" is True or False, got {value!r}")
    return value
