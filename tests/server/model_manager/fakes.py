"""A loader whose loads a test ends when it likes, and models that are names only."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ollama_engine.ml.device.memory import DeviceMemory, MemoryReport
from ollama_engine.server.model_manager.loader import LoadedEngine, LoadProgress
from ollama_engine.server.model_manager.manager import ModelManager
from ollama_engine.server.model_manager.planner import Bytes, Need
from ollama_engine.server.model_manager.runner_options import RunnerOptions
from ollama_engine.server.served import ModelFacts
from ollama_engine.server.settings import ServerSettings
from ollama_engine.store.stored_model import StoredModel

FACTS = ModelFacts("llama", 100, 2000, None, 1, 1, frozenset({"completion"}), 10, 0)


class NamedModel:
    """A served model that answers nothing."""

    facts = FACTS

    def __init__(self, stored: StoredModel) -> None:
        self.stored = stored


@dataclass
class FakeLoader:
    """Counts loads; `gate` holds them back while it is clear, `failures` end the next ones.

    `bed` holds back models that fall asleep or wake up, `sleepless` and `wakeless` are what these raise.
    """

    size: int = 10
    loads: list[str] = field(default_factory=list)
    options: list[RunnerOptions] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    measured: list[str] = field(default_factory=list)
    taken: list[Bytes] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    broken: Exception | None = None
    deaths: dict[str, asyncio.Event] = field(default_factory=dict)
    slept: list[str] = field(default_factory=list)
    woken: list[str] = field(default_factory=list)
    sleepless: Exception | None = None
    wakeless: Exception | None = None

    def __post_init__(self) -> None:
        self.bed = asyncio.Event()
        self.bed.set()
        self.gate = asyncio.Event()
        self.gate.set()

    async def measure(self, stored: StoredModel, options: RunnerOptions, taken: Bytes) -> Need:
        await asyncio.sleep(0)
        self.measured.append(stored.name)
        self.taken.append(taken)
        if self.broken is not None:
            raise self.broken
        return Need({"CPU": self.size}, {"CPU": self.size})

    async def load(self, stored: StoredModel, options: RunnerOptions, progress: LoadProgress) -> LoadedEngine:
        self.loads.append(stored.name)
        self.options.append(options)
        while not self.gate.is_set():
            progress(0, 10)
            await asyncio.sleep(0.001)
        if self.failures:
            raise self.failures.pop(0)
        dead = self.deaths[stored.name] = asyncio.Event()

        async def close() -> None:
            await asyncio.sleep(0)
            self.closed.append(stored.name)

        async def sleep() -> None:
            self.slept.append(stored.name)
            await self.bed.wait()
            if self.sleepless is not None:
                raise self.sleepless

        async def wake() -> None:
            self.woken.append(stored.name)
            await self.bed.wait()
            if self.wakeless is not None:
                raise self.wakeless

        model: Any = NamedModel(stored)
        return LoadedEngine(
            model, MemoryReport((DeviceMemory("CPU", weights=self.size),)), close, sleep, wake, dead.is_set, dead.wait
        )


def stored(name: str, **facts: Any) -> StoredModel:
    return StoredModel(name, f"digest of {name}", 1, 0.0, Path("/nowhere"), **facts)


def manager(
    loader: FakeLoader, *, free: int = 1000, sleep: float = 0.0, removed: Collection[str] = (), **settings: Any
) -> ModelManager:
    """With `free` bytes for all models together that are awake; those of the names `removed` are in no store."""
    made: ModelManager

    def left(_: object) -> dict[str, int]:
        awake = [entry for entry in made._entries.values() if entry.state != "sleeping"]
        return {"CPU": free - loader.size * len(awake)}

    made = ModelManager(
        ServerSettings(sleep=sleep, **settings), loader, removed=lambda model: model.name in removed, free=left
    )
    return made


async def until(condition: Any) -> None:
    """Let the other tasks run until a condition holds."""

    async def wait() -> None:
        await asyncio.sleep(0)  # from Python 3.12 on, wait_for makes no task of this
        while not condition():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(wait(), 30)
