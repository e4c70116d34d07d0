"""RunnerOptions: those options of a request that decide how its model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from ollama_engine.config import RANGES
from ollama_engine.errors import ConfigError, Option

if TYPE_CHECKING:
    from ollama_engine.server.settings import ServerSettings

__all__ = ["RunnerOptions"]

AUTOMATIC = {"num_ctx": 0, "num_batch": 0, "num_gpu": -1, "num_thread": 0}
"""Ollama's names and values that leave a decision to the engine, which is the same as not to give them."""
ENGINE_NAMES = {"num_ctx": "num_ctx", "num_batch": "batch_size", "num_thread": "threads", "num_gpu": "gpu_layers"}
"""Options whose largest values stand for larger ones: a load that fails for them has unloaded what ran before."""


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """Ollama's options of loading; None where a request does not give one.

    Attributes:
        num_ctx: tokens that one request may hold.
        num_batch: tokens computed in one step.
        num_gpu: layers on GPUs.
        main_gpu: the device to fill first, with the output, by its number.
        use_mmap: whether weights are read from the mapped file.
        num_thread: CPU threads.
    """

    num_ctx: int | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    use_mmap: bool | None = None
    num_thread: int | None = None

    @classmethod
    def of(cls, *layers: Mapping[str, Any]) -> RunnerOptions:
        """Those among the options of a request; a later layer stands above an earlier one.

        Raises ConfigError for values of another type.
        """
        given: dict[str, Any] = {}
        for layer in layers:
            given |= {name: value for name, value in layer.items() if value is not None}
        names = [option.name for option in fields(cls)]
        return cls(**{name: _checked(name, given[name]) for name in names if name in given})

    def fits(self, loaded: RunnerOptions, context_length: int | None = None) -> bool:
        """Whether a model that was loaded with these options serves a request that gives those of `self`.

        Only options that the request gives are compared. More tokens than the model was trained for are as good as
        `context_length`, of which loading makes them.
        """
        for option in fields(self):
            wanted, found = getattr(self, option.name), getattr(loaded, option.name)
            if option.name == "num_ctx" and context_length is not None:
                wanted, found = (None if size is None else min(size, context_length) for size in (wanted, found))
            if wanted is not None and wanted != found:
                return False
        return True

    def engine_options(self, settings: ServerSettings, *, has_gpu: bool) -> dict[str, Any]:
        """Keyword arguments of `Engine`. Options of GPUs are left out where there is none, as Ollama does."""
        options: dict[str, Any] = {
            "num_ctx": self.num_ctx or settings.context_length or None,
            "parallel": settings.num_parallel,
            "max_queue": settings.max_queue,
            "threads": self.num_thread,
            "devices": settings.devices or None,
            "kv_cache_type": settings.kv_cache_type,
            "flash_attention": settings.flash_attention,
            "draft": settings.draft,
            "prefix_store": settings.prefix_store,
            "prefix_store_bytes": settings.prefix_store_bytes or None,
            "expert_cache_bytes": settings.expert_cache_bytes or None,
            "measure_kernels": settings.measure_kernels,
            "mmap": True if self.use_mmap is None else self.use_mmap,
        }
        if self.num_batch is not None:
            options["batch_size"] = self.num_batch
        if has_gpu:
            options |= {"gpu_layers": self.num_gpu, "main_gpu": self.main_gpu,
                        "tensor_split": settings.tensor_split or None}  # fmt: skip
        return options


def _checked(name: str, value: object) -> Any:
    if name == "use_mmap":
        if not isinstance(value, bool):
            raise ConfigError(Option(name), f" must be of type boolean, got {value!r:.40}")
        return value
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(whole, bool) or not isinstance(whole, int):
        raise ConfigError(Option(name), f" must be of type integer, got {value!r:.40}")
    return None if name in AUTOMATIC and whole <= AUTOMATIC[name] else _at_most(name, whole)


def _at_most(name: str, value: int) -> int:
    return min(value, RANGES[ENGINE_NAMES[name]][1]) if name in ENGINE_NAMES else value
