"""ReplicaModelManager: which models the replicas have loaded, as the server that sends them requests sees it."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ray.serve.exceptions import DeploymentUnavailableError

from ollama_engine.ray.prompt_chain import prompt_chain
from ollama_engine.ray.replica import ModelWish
from ollama_engine.ray.replica_model import ReplicaModel, send
from ollama_engine.server.isolation.codec import decode
from ollama_engine.server.managing import KeepAlive, LoadedModel, LoadingModel, ModelLease
from ollama_engine.server.model_manager.runner_options import RunnerOptions

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

    from ollama_engine.server.served import ModelFacts
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["ReplicaModelManager"]


@dataclass(slots=True)
class _Entry:
    """A model that some replica has loaded for this server."""

    stored: StoredModel
    wish: ModelWish
    facts: ModelFacts
    expires_at: float
    holds: int = 0


class ReplicaModelManager:
    """`ManagesModels` over a deployment of `Replica`.

    Each replica loads and unloads models as the single-machine server does, by its own memory. What is known here is
    what this server asked for: the first request for a model has some replica load it, others load it when a request
    comes to them.

    Args:
        engines: the deployment.
        keep_alive: seconds that a model stays loaded where a request does not say.
    """

    def __init__(self, engines: DeploymentHandle, keep_alive: float) -> None:
        self._engines = engines
        self._keep_alive = keep_alive
        self._entries: dict[tuple[str, RunnerOptions], _Entry] = {}
        self._loading: dict[int, tuple[StoredModel, float]] = {}

    @asynccontextmanager
    async def lease(
        self, stored: StoredModel, options: Mapping[str, Any], keep_alive: KeepAlive = None
    ) -> AsyncIterator[ModelLease]:
        began = time.monotonic()
        key = (stored.name, RunnerOptions.of(stored.parameters, options))
        wish = ModelWish(stored.name, dict(options), keep_alive)
        self._forget_expired()
        entry = self._entries.get(key)
        if entry is None or entry.stored != stored:
            facts = await self._load(stored, wish)
            entry = self._loaded(key, _Entry(stored, wish, facts, math.inf))
        entry.holds += 1
        try:
            yield ModelLease(ReplicaModel(self._engines, wish, stored, entry.facts), time.monotonic() - began)
        finally:
            entry.holds -= 1
            entry.expires_at = time.time() + (self._keep_alive if keep_alive is None else keep_alive)

    async def _load(self, stored: StoredModel, wish: ModelWish) -> ModelFacts:
        mark = object()
        self._loading[id(mark)] = (stored, time.monotonic())
        try:
            answer = await send(self._engines, "prepare", wish, chain=prompt_chain(wish.name, [], {}))
        finally:
            del self._loading[id(mark)]
        facts: ModelFacts = decode(answer["facts"])
        return facts

    def _loaded(self, key: tuple[str, RunnerOptions], new: _Entry) -> _Entry:
        """The entry of a model that has been loaded: another request may have waited for it, too, and made one."""
        entry = self._entries.get(key)
        if entry is not None and entry.stored == new.stored:
            return entry
        for other in [other for other in self._entries if other[0] == new.stored.name]:
            del self._entries[other]  # replicas load it anew for options that differ
        self._entries[key] = new
        return new

    def _forget_expired(self) -> None:
        now = time.time()
        for key in [key for key, entry in self._entries.items() if not entry.holds and entry.expires_at <= now]:
            del self._entries[key]

    def loaded(self) -> list[LoadedModel]:
        self._forget_expired()
        rows = [
            LoadedModel(
                ReplicaModel(self._engines, entry.wish, entry.stored, entry.facts), entry.expires_at, entry.holds
            )
            for entry in self._entries.values()
        ]
        return sorted(rows, key=lambda row: -row.expires_at)

    def sleeping(self) -> list[LoadedModel]:
        return []  # models sleep in replicas, which do not report it

    def loading(self) -> list[LoadingModel]:
        now = time.monotonic()
        return [LoadingModel(stored, 0, 0, now - began) for stored, began in self._loading.values()]

    async def unload(self, stored: StoredModel) -> bool:
        """Unload a model in all replicas."""
        for key in [key for key in self._entries if key[0] == stored.name]:
            del self._entries[key]
        try:
            answers = await self._engines.broadcast("unload", stored.name).results_async(return_exceptions=True)
        except DeploymentUnavailableError:  # there is no replica now
            return False
        return any(answer is True for answer in answers)

    async def close(self) -> None:
        """Nothing: replicas unload their models when Ray ends them."""
