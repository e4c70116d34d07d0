"""FactMethods: what an Engine says of itself: its model, its options, its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ollama_engine.config import EngineConfig
from ollama_engine.ml.device import devices as all_devices
from ollama_engine.ml.device_info import Device

if TYPE_CHECKING:
    from ollama_engine.ml.memory import MemoryReport
    from ollama_engine.runner.load.loading import Loaded
    from ollama_engine.runner.load.model_info import ModelInfo

__all__ = ["FactMethods"]


class FactMethods:
    """What was loaded, and what it takes; an Engine has all of this."""

    if TYPE_CHECKING:

        def _open(self) -> Loaded:
            """The loaded model; Engine defines it. Raises ClosedError after `close`."""

    @property
    def info(self) -> ModelInfo:
        """What the model file says of itself."""
        from ollama_engine.runner.load.model_info import model_info  # noqa: PLC0415 (nothing but this needs it)

        return model_info(self._open())

    @property
    def config(self) -> EngineConfig:
        """The options in effect."""
        return self._open().config

    @property
    def memory(self) -> MemoryReport:
        """Bytes taken, by device and layer; print it for a table."""
        return self._open().memory()

    @staticmethod
    def devices() -> tuple[Device, ...]:
        """The devices of this machine that the build can use, GPUs before the CPU."""
        return all_devices()
