"""FactMethods: what an Engine says of itself: its model, its options, its memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from ollama_engine.config import EngineConfig
from ollama_engine.ml.device.device import devices as all_devices
from ollama_engine.ml.device.device_info import Device
from ollama_engine.not_copied import check_process

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from ollama_engine.ml.device.memory import MemoryReport
    from ollama_engine.runner.load.loading import Loaded
    from ollama_engine.runner.load.model_info import ModelInfo

__all__ = ["FactMethods"]

Fields = TypeVar("Fields", bound="DataclassInstance")


class FactMethods:
    """Facts about the loaded model, and the memory it takes; an Engine has all of this."""

    if TYPE_CHECKING:
        _engine_thread: Any  # of a room above

        def _open(self) -> Loaded:
            """The loaded model; Engine defines it. Raises ClosedError after `close`."""

    def _open_here(self) -> Loaded:
        """As `_open`; raises ClosedError in a forked process, too."""
        loaded = self._open()
        check_process(self._engine_thread.pid)
        return loaded

    @property
    def info(self) -> ModelInfo:
        """Facts that the model file states about itself."""
        from ollama_engine.runner.load.model_info import model_info  # noqa: PLC0415 (nothing but this needs it)

        return model_info(self._open())

    @property
    def config(self) -> EngineConfig:
        """The options in effect."""
        return self._open().config

    @property
    def memory(self) -> MemoryReport:
        """Bytes taken, by device and layer; print it for a table."""
        return self._open_here().memory()

    def _with_memory(self, metrics: Callable[[], Fields]) -> Fields:
        """The metrics, with their fields about memory."""
        loaded = self._open_here()
        experts = loaded.weights.experts
        counts = {} if experts is None else experts.counts()
        names = {"uses": "expert_uses", "misses": "expert_misses", "ahead": "experts_read_ahead",
                 "ahead_used": "experts_used_ahead", "bytes_read": "expert_bytes_read"}  # fmt: skip
        device_bytes = {device.device: device.by_kind for device in loaded.memory().devices}
        known: dict[str, Any] = {name: counts[key] for key, name in names.items() if key in counts}
        return replace(metrics(), device_bytes=device_bytes, **known)

    @staticmethod
    def plan_memory(
        model: str | os.PathLike[str],
        *,
        projector: str | os.PathLike[str] | None = None,
        gpu_memory: Sequence[int] | None = None,
        more_memory: Mapping[str, int] | None = None,
        **options: Any,
    ) -> MemoryReport:
        """The memory that `Engine(model, projector=projector, **options)` will take, without loading anything.

        Sizes of graphs and masks are estimates on the safe side; weights and cache are what loading takes. The report's
        `placement` says which layers go on which device, for the memory that is free there now. `gpu_memory` plans for
        another machine: free bytes of each of its GPUs; `more_memory` counts on bytes that will be free, by device.

        Raises as making an Engine does, but never NoMemoryError: a program compares the report with what its machine
        has, and `placement.overfull` with what the options demand.
        """
        from ollama_engine.runner.load.planning import plan_memory  # noqa: PLC0415 (nothing but this needs it)

        return plan_memory(
            model, EngineConfig(**options), projector=projector, gpu_memory=gpu_memory, more_memory=more_memory
        )

    @staticmethod
    def devices() -> tuple[Device, ...]:
        """The devices of this machine that the build can use, GPUs before the CPU."""
        return all_devices()
