"""ResidentModels: the simplest scheduler: each model is loaded once and stays."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from ollama_engine.engine import Engine
from ollama_engine.server.local_model import LocalModel
from ollama_engine.server.scheduling import KeepAlive, LoadedModel, LoadingModel, ModelLease
from ollama_engine.server.served import ModelFacts
from ollama_engine.server.settings import ServerSettings
from ollama_engine.store.stored_model import StoredModel

__all__ = ["ResidentModels"]


class ResidentModels:
    """`ModelScheduler` without limits: for tests, and for apps with models of their own."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._models: dict[str, LocalModel] = {}
        self._loading = asyncio.Lock()

    @asynccontextmanager
    async def lease(
        self, stored: StoredModel, options: Mapping[str, Any], keep_alive: KeepAlive = None
    ) -> AsyncIterator[ModelLease]:
        started = time.perf_counter()
        async with self._loading:
            if stored.digest not in self._models:
                self._models[stored.digest] = await asyncio.to_thread(load_here, stored, self._settings, options)
        yield ModelLease(self._models[stored.digest], time.perf_counter() - started)

    def loaded(self) -> list[LoadedModel]:
        return [LoadedModel(model, math.inf, 0) for model in self._models.values()]

    def loading(self) -> list[LoadingModel]:
        return []

    async def unload(self, stored: StoredModel) -> bool:
        model = self._models.pop(stored.digest, None)
        if model is not None:
            await asyncio.to_thread(model.engine.close)
        return model is not None

    async def close(self) -> None:
        for model in self._models.values():
            await asyncio.to_thread(model.engine.close)
        self._models.clear()


def load_here(stored: StoredModel, settings: ServerSettings, options: Mapping[str, Any]) -> LocalModel:
    """Load a model in this process."""
    num_ctx = options.get("num_ctx") or settings.context_length or None
    engine = Engine(
        stored.model_path, num_ctx=num_ctx, parallel=settings.num_parallel, max_queue=settings.max_queue,
        projector=stored.projector_path,
    )  # fmt: skip
    return LocalModel(engine, stored, facts_of(engine, settings))


def facts_of(engine: Engine, settings: ServerSettings) -> ModelFacts:
    """Facts about a loaded model."""
    info = engine.info
    capabilities = {"vision"} if info.reads_images else set()
    if engine.chat_templates or info.pooling is None:
        capabilities |= {"completion"}
    if info.n_embd is not None:
        capabilities |= {"embedding"}
    return ModelFacts(
        architecture=info.architecture, num_ctx=info.num_ctx, context_length=info.context_length, n_embd=info.n_embd,
        n_parameters=info.n_parameters, parallel=settings.num_parallel, capabilities=frozenset(capabilities),
        memory_bytes=info.file_bytes, device_bytes=0,
    )  # fmt: skip
