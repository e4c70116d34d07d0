"""Loader: how models get into memory. LocalLoader loads them in this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ollama_engine.async_tasks import in_thread_of_its_own
from ollama_engine.config import DEFAULT_NUM_CTX
from ollama_engine.engine import Engine
from ollama_engine.errors import UnsupportedModelError
from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.runner.load.draft_parts import can_draft
from ollama_engine.runner.load.head_parts import can_use_head
from ollama_engine.server.local_model import LocalModel
from ollama_engine.server.model_manager.facts import facts_of, with_template
from ollama_engine.server.model_manager.memory import need_of

if TYPE_CHECKING:
    from ollama_engine.ml.device.memory import MemoryReport
    from ollama_engine.server.model_manager.planner import Bytes, Need
    from ollama_engine.server.model_manager.runner_options import RunnerOptions
    from ollama_engine.server.served import ServedModel
    from ollama_engine.server.settings import ServerSettings
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["LOOK_SECONDS", "SLEEP_OPTIONS", "LoadProgress", "LoadedEngine", "Loader", "LocalLoader", "PlanningLoader"]

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often a model on other devices is asked whether it is over."""

SLEEP_OPTIONS: Mapping[str, Any] = {"timeout": 10.0}
"""Keyword arguments of `Engine.sleep`: requests of clients that have gone may still be in the engine."""

LoadProgress = Callable[[int, int], None]
"""Called with bytes done and bytes in all, from any thread. What it raises ends the load."""


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A model in memory.

    Attributes:
        model: what answers.
        memory: what it takes.
        close: frees it; requests that still run end with ClosedError.
        sleep: gives its memory back and keeps what it holds, as `Engine.sleep`, whose errors it raises.
        wake: takes the memory again, as `Engine.wake_up`.
        over: whether it takes no requests any more without having been closed: after a fault, or a crash.
        ended: awaits that it is over; None for a model that neither has a process of its own nor uses other devices.
    """

    model: ServedModel
    memory: MemoryReport
    close: Callable[[], Awaitable[None]]
    sleep: Callable[[], Awaitable[object]]
    wake: Callable[[], Awaitable[object]]
    over: Callable[[], bool]
    ended: Callable[[], Awaitable[object]] | None = None


class Loader(Protocol):
    """Loads models, in this process or in others."""

    async def measure(self, stored: StoredModel, options: RunnerOptions, taken: Bytes) -> Need:
        """Memory that a model will take, where all loaded ones are unloaded for it, which take `taken` on each device.

        Raises what loading raises for a file that cannot be loaded.
        """

    async def load(self, stored: StoredModel, options: RunnerOptions, progress: LoadProgress) -> LoadedEngine:
        """Load a model. Raises as `Engine` does, and what `progress` raises."""


class PlanningLoader:
    """The part of a `Loader` before anything is loaded, the same for models in any process."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings

    async def measure(self, stored: StoredModel, options: RunnerOptions, taken: Bytes) -> Need:
        work = partial(measure, stored, options, self._settings, taken)
        return await in_thread_of_its_own(work, f"measures {stored.name}")

    def load_options(self, stored: StoredModel, options: RunnerOptions) -> dict[str, Any]:
        """Keyword arguments of the Engine to load; the log says which options of a request are not among them.

        Raises UnsupportedModelError for a model with adapters.
        """
        refuse_adapters(stored)
        chosen = engine_options(stored, options, self._settings)
        log_changed(stored, options, chosen)
        return chosen


class LocalLoader(PlanningLoader):
    """Loads models in this process."""

    async def load(self, stored: StoredModel, options: RunnerOptions, progress: LoadProgress) -> LoadedEngine:
        def load() -> LoadedEngine:
            chosen = self.load_options(stored, options)
            engine = Engine(stored.model_path, projector=stored.projector_path, progress=progress, **chosen)
            try:
                model = LocalModel(engine, stored, with_template(facts_of(engine), stored.template))
                return LoadedEngine(
                    model,
                    engine.memory,
                    partial(in_thread_of_its_own, engine.close, f"unloads {stored.name}"),
                    partial(in_thread_of_its_own, partial(engine.sleep, **SLEEP_OPTIONS), f"unloads {stored.name}"),
                    partial(in_thread_of_its_own, engine.wake_up, f"wakes {stored.name}"),
                    lambda: engine.closed,
                    (lambda: _over(engine)) if self._settings.devices else None,
                )
            except BaseException:
                engine.close()
                raise

        return await in_thread_of_its_own(load, f"loads {stored.name}")


async def _over(engine: Engine) -> None:
    """Wait until an engine has closed, as it does when a worker is gone."""
    while not engine.closed:
        await asyncio.sleep(LOOK_SECONDS)


def measure(stored: StoredModel, options: RunnerOptions, settings: ServerSettings, taken: Bytes) -> Need:
    """Memory that a model will take where nothing is loaded, with the layers on GPUs that fit there then.

    `taken`: what loaded models take now on each device. Reads the header of the file.
    """
    refuse_adapters(stored)
    known = engine_options(stored, options, settings)
    del known["max_queue"]
    return need_of(Engine.plan_memory(stored.model_path, projector=stored.projector_path, more_memory=taken, **known))


def engine_options(stored: StoredModel, options: RunnerOptions, settings: ServerSettings) -> dict[str, Any]:
    """Keyword arguments of the Engine.

    num_ctx is at most what the model was trained for, as in Ollama, and no batch is larger than all contexts: its graph
    would take gigabytes.
    """
    has_gpu = bool(settings.devices) or any(device.kind in ("gpu", "igpu") for device in Engine.devices())
    chosen = options.engine_options(settings, has_gpu=has_gpu)
    with GGUFFile(stored.model_path) as file:
        trained = file.metadata.get(f"{Metadata(file.metadata).architecture}.context_length")
    if chosen["num_ctx"] and isinstance(trained, int) and trained > 0:
        chosen["num_ctx"] = min(chosen["num_ctx"], trained)
    chosen |= _draft_options(stored, settings)
    if "batch_size" in chosen:
        cells = (chosen["num_ctx"] or DEFAULT_NUM_CTX) * chosen["parallel"]
        chosen["batch_size"] = min(chosen["batch_size"], cells)
    return chosen


def _draft_options(stored: StoredModel, settings: ServerSettings) -> dict[str, Any]:
    """The draft model, for a model with its vocabulary; "auto" where a model cannot draft as the settings say."""
    if settings.draft_model and settings.draft != "off":
        if can_draft(settings.draft_model, stored.model_path):
            return {"draft_model": settings.draft_model}
        log.info("%s is no draft model of %s, and guesses nothing for it", settings.draft_model, stored.name)
    without = settings.draft == "model" or (settings.draft == "mtp" and not can_use_head(stored.model_path))
    return {"draft": "auto"} if without else {}


def log_changed(stored: StoredModel, options: RunnerOptions, chosen: Mapping[str, Any]) -> None:
    """Log which options of a request its model is not loaded with; see `engine_options`."""
    if options.num_ctx and chosen["num_ctx"] != options.num_ctx:
        log.warning("%s: num_ctx is %d and not %d: the model was trained for no more",
                    stored.name, chosen["num_ctx"], options.num_ctx)  # fmt: skip
    for name, own in (("num_gpu", "gpu_layers"), ("main_gpu", "main_gpu")):
        if getattr(options, name) and own not in chosen:
            log.warning("%s: %s does nothing: this machine has no GPU", stored.name, name)


def refuse_adapters(stored: StoredModel) -> None:
    """Raise UnsupportedModelError for a model with adapters: without them its answers are another model's."""
    if stored.adapter_paths:
        raise UnsupportedModelError(f"model '{stored.name}' has an adapter (LoRA), which cannot be applied yet")
