"""A model in a process and the same in this one, for tests that compare their answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from ollama_engine.server.isolation.loader import ProcessLoader
from ollama_engine.server.isolation.remote_model import RemoteModel
from ollama_engine.server.library import Library
from ollama_engine.server.model_manager.loader import LoadedEngine, Loader, LocalLoader
from ollama_engine.server.model_manager.runner_options import RunnerOptions
from ollama_engine.server.served import ServedModel
from ollama_engine.server.settings import ServerSettings
from tests.support.waiting import join

Value = TypeVar("Value")

OPTIONS = RunnerOptions(num_ctx=256, num_batch=64, num_thread=1)


@dataclass
class Pair:
    """The same model twice, on an event loop of its own."""

    loop: asyncio.AbstractEventLoop
    local: ServedModel
    remote: RemoteModel

    def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(120)


def loaded(loop: asyncio.AbstractEventLoop, loader: Loader, name: str) -> LoadedEngine:
    work = loader.load(Library().find(name), OPTIONS, lambda done, total: None)
    return asyncio.run_coroutine_threadsafe(work, loop).result(120)


def pair(name: str) -> Iterator[Pair]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    settings, models = ServerSettings(num_parallel=2), []
    try:
        for loader in (LocalLoader(settings), ProcessLoader(settings)):
            models.append(loaded(loop, loader, name))
        local, remote = models
        assert isinstance(remote.model, RemoteModel)
        yield Pair(loop, local.model, remote.model)
    finally:
        for model in models:
            closing: Any = model.close()
            asyncio.run_coroutine_threadsafe(closing, loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        join(thread)
        loop.close()


@pytest.fixture(scope="module")
def text_models() -> Iterator[Pair]:
    yield from pair("demo")


@pytest.fixture(scope="module")
def vision_models() -> Iterator[Pair]:
    yield from pair("demo-vision")
