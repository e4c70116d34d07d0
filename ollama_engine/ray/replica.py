"""Replica: a deployment of engines: what the single-machine server keeps in its own process, without the HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ollama_engine.errors import EngineError
from ollama_engine.server.isolation.codec import encode
from ollama_engine.server.isolation.failures import sent_error
from ollama_engine.server.isolation.model_server_app import call_method, last_line, lines, start
from ollama_engine.server.library import Library
from ollama_engine.server.model_manager.making import make_manager
from ollama_engine.store.model_store import ModelStore

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from ollama_engine.server.managing import KeepAlive, ModelLease
    from ollama_engine.server.settings import ServerSettings

__all__ = ["ModelWish", "Replica"]

MESSAGES_PER_SECOND = 400
"""Messages that a replica sends, for all its answers together. Each takes Ray's processes a millisecond, and HTTP's
another: with one for each token, many answers side by side would leave the engine little of the machine."""


@dataclass(frozen=True, slots=True)
class ModelWish:
    """The model that a request is for.

    Attributes:
        name: in the library of the replica: its files may lie elsewhere than the server's.
        options: runner options, Ollama's names.
        keep_alive: seconds that it stays loaded after this request; None as the settings say.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    keep_alive: KeepAlive = None


class Replica:
    """Engines behind the model manager of the single-machine server.

    Errors cross as data, so that the same class with the same message arrives: Ray wraps what a method raises.

    Args:
        settings: of the server.
        threads: CPU threads of each engine; None as many as the engine takes.
    """

    def __init__(self, settings: ServerSettings, threads: int | None = None) -> None:
        self._library = Library(settings.files, ModelStore(settings.models))
        self._manager = make_manager(settings, self._library)
        self._streams = 0
        self._defaults = {} if threads is None else {"num_thread": threads}

    def _lease(self, wish: ModelWish) -> AbstractAsyncContextManager[ModelLease]:
        stored = self._library.find(wish.name)
        return self._manager.lease(stored, {**self._defaults, **wish.options}, wish.keep_alive)

    async def prepare(self, wish: ModelWish, *, chain: list[bytes]) -> dict[str, Any]:
        """Load a model: its facts under "facts", or "$failure"."""
        try:
            async with self._lease(wish) as lease:
                return {"facts": encode(lease.model.facts)}
        except Exception as error:  # whatever it is, the server gets it
            return {"$failure": sent_error(error)}

    async def call(self, wish: ModelWish, body: dict[str, Any], *, chain: list[bytes]) -> dict[str, Any]:
        """The result of a method of ServedModel under "result", or "$failure"."""
        try:
            async with self._lease(wish) as lease:
                return {"result": await call_method(lease.model, body)}
        except Exception as error:
            return {"$failure": sent_error(error)}

    async def call_if_loaded(self, wish: ModelWish, body: dict[str, Any]) -> dict[str, Any] | None:
        """`call` for what watches a model, which must not load it: None where it is not loaded."""
        name = self._library.find(wish.name).name
        row = next((row for row in self._manager.loaded() if row.model.stored.name == name), None)
        if row is None:
            return None
        try:
            return {"result": await call_method(row.model, body)}
        except EngineError as error:
            return {"$failure": sent_error(error)}

    async def stream(
        self, wish: ModelWish, body: dict[str, Any], *, chain: list[bytes]
    ) -> AsyncIterator[bytes]:  # fmt: skip
        """Lines of an answer. Cancelling the request closes this, and frees the sequence."""
        self._streams += 1
        try:
            async with self._lease(wish) as lease, aclosing(lines(await start(lease.model, body))) as found:
                async for line in found:
                    yield line
                    # What the engine writes meanwhile becomes one chunk.
                    await asyncio.sleep(self._streams / MESSAGES_PER_SECOND)
        except Exception as error:
            yield last_line(error)
        finally:
            self._streams -= 1

    async def unload(self, name: str) -> bool:
        """Unload a model when its requests have ended. False where it is not loaded."""
        return await self._manager.unload(self._library.find(name))

    async def __del__(self) -> None:
        """Unload all models: Ray Serve awaits this before it ends a replica."""
        await self._manager.close()
