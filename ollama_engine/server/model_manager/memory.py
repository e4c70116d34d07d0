"""Limits of this machine and memory of models, in the numbers that the planner compares."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ollama_engine.engine import Engine
from ollama_engine.ml.device.hostmem import available_bytes
from ollama_engine.ml.device.worker_address import SCHEME
from ollama_engine.server.model_manager.planner import Bytes, Need

if TYPE_CHECKING:
    from ollama_engine.ml.device.memory import MemoryReport

__all__ = ["SLEEPERS", "default_models", "free_memory", "mapped_bytes", "need_of", "taken_bytes"]

MODELS = 3
"""How many models are loaded at once by default: for each GPU, or on the CPU."""

SLEEPERS = 3
"""How many models sleep at once. Each takes a quarter of the free disk at most, so that they leave two fifths."""


def default_models() -> int:
    """Models loaded at once where the settings say nothing: as many for each GPU, or for the CPU."""
    return MODELS * max(1, sum(device.kind == "gpu" for device in Engine.devices()))


def free_memory(mapped: Iterable[Bytes]) -> Bytes:
    """Bytes that further models may take on each device, below the limits of control groups.

    The system counts mapped files as memory that it can take back. Those of loaded models, `mapped`, are no room for
    others: they would be read from disk again for every token.
    """
    free = {device.name: device.memory_free for device in Engine.devices() if device.kind != "cpu"}
    free[cpu_name()] = available_bytes()
    for model in mapped:
        for device, nbytes in model.items():
            if device in free:  # those of workers are not asked here, see `need_of`
                free[device] = max(0, free[device] - nbytes)
    return free


def cpu_name() -> str:
    """The CPU's name in memory reports."""
    return next((device.name for device in Engine.devices() if device.kind == "cpu"), "CPU")


def need_of(report: MemoryReport) -> Need:
    """A plan of memory as the planner takes it. It cannot do without weights, keys and values; graphs are estimates."""
    return Need(
        memory=taken_bytes(report),
        least={device.device: device.weights + device.cache for device in report.devices},
        room={} if report.placement is None else {
            device.name: device.free
            for device in report.placement.devices
            if device.free is not None and device.name.startswith(SCHEME)
        },
    )  # fmt: skip


def taken_bytes(report: MemoryReport) -> Bytes:
    """Bytes on each device, mapped weights included."""
    return {device.device: device.allocated + device.mapped for device in report.devices}


def mapped_bytes(report: MemoryReport) -> Bytes:
    """The mapped weights among these bytes, which are read from the file."""
    return {device.device: device.mapped for device in report.devices}
